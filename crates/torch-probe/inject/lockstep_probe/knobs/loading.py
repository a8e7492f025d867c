"""`num_workers` and `micro_batch`: arguments of the DataLoaders that the script creates.

`num_workers` moves the loading of the same samples in the same order to other processes. Random numbers that a dataset draws itself are
different then, because each worker has its own generator. `micro_batch` changes the number of samples per step of one rank, and so the
global batch: the number of accumulation steps and the learning rate stay unchanged.
"""

import functools
import inspect
import multiprocessing

from .knob import Knob, KnobError, positive


class Loading(Knob):
    """The common part of both knobs: change the arguments of a DataLoader, or leave that loader unchanged and say so."""

    waits_for = "the script has made no DataLoader of torch"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._changed = 0
        self._told = ""

    def patches(self):
        return {"torch.utils.data.dataloader": self._watch}

    def _watch(self, module):
        kind = module.DataLoader
        original = kind.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(*args, **kwargs):
            bound = self._guarded_change(module, signature, args, kwargs)
            if bound is None:
                original(*args, **kwargs)
                return
            try:
                original(*bound.args, **bound.kwargs)
            except Exception as error:  # torch's own checks, which change nothing: then the script's values are used
                self.guard(self._refused, f"DataLoader does not take it ({error})")
                original(*args, **kwargs)
                return
            self.guard(self._say)

        kind.__init__ = __init__

    def _guarded_change(self, module, signature, args, kwargs):
        def change():
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return None  # a mistake of the script
            try:
                self._told = self._change(module, bound)
            except KnobError as reason:
                self._refused(str(reason))
                return None
            return bound

        return self.guard(change)

    def _refused(self, reason):
        if self._changed == 0:
            self.failed(f"nothing was changed: {reason}")

    def _say(self):
        self._changed += 1
        if self._changed == 1:
            self.applied(self._told)


class Workers(Loading):
    name = "num_workers"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._count = positive(self.name, value, int, 0)

    def _change(self, module, bound):
        given = bound.arguments
        before = given.get("num_workers", 0)
        if self._count > 0:
            if isinstance(given.get("dataset"), module.IterableDataset) and not asks_for_its_worker(given["dataset"]):
                raise KnobError("the dataset is an IterableDataset that does not ask which worker it is in: each would give all of it")
            method = started_by(given.get("multiprocessing_context"))
            if before == 0 and method != "fork":
                raise KnobError(f"workers are started by '{method}' here, which a script has to be written for (a dataset that can be pickled)")
        else:
            given.update(persistent_workers=False, prefetch_factor=None, timeout=0, multiprocessing_context=None)
        given["num_workers"] = self._count
        return f"each DataLoader of this rank has {self._count} workers; the first one had {before} in the script"


class MicroBatch(Loading):
    name = "micro_batch"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._size = positive(self.name, value, int, 1)
        self._first = None

    def _change(self, module, bound):
        given = bound.arguments
        before = given.get("batch_size", 1)
        if given.get("batch_sampler") is not None:
            raise KnobError("the script's DataLoader has a batch_sampler, which decides what a batch is")
        if before is None:
            raise KnobError("the script's DataLoader makes no batches (batch_size=None)")
        if self._first not in (None, before):
            raise KnobError("another batch size than the first DataLoader's stays as it is")
        self._first = before
        given["batch_size"] = self._size
        return (
            f"each batch of this rank's DataLoaders holds {self._size} samples instead of {before}, so the global batch is "
            f"{self._size / before:g} times what it was; gradient accumulation and learning rate are as the script has them"
        )


def asks_for_its_worker(dataset):
    """Returns True if the dataset's iteration uses get_worker_info, which it needs to give each worker its share."""
    code = getattr(getattr(type(dataset), "__iter__", None), "__code__", None)
    return code is not None and "get_worker_info" in code.co_names


def started_by(context):
    """Returns how the processes of this context are started; None means Python's default."""
    if isinstance(context, str):
        return context
    return (multiprocessing if context is None else context).get_start_method()
