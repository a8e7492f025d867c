"""Runs a forward pass twice, and applies its effects once.

torch's checkpointing restores its own random numbers before it runs a block again. It does not restore the random numbers of Python and
NumPy, and buffers that the block changes (the running statistics of a batch norm, which would be updated twice per step). Here the second
run starts with the same values of both as the first run, and its changes to them are dropped.
"""

import contextlib
import random
import sys


class Replay:
    """For one block: a rehearsal finds what its runs change; each second run then starts from the same state."""

    def __init__(self, module):
        self._module = module
        self._changing = {}  # training mode -> ([(module, name)] of buffers, which random numbers are used)

    def rehearsed(self):
        return self._module.training in self._changing

    @contextlib.contextmanager
    def rehearsal(self):
        """A run without effects that finds what a run changes."""
        watched = [(part, name) for part in self._module.modules() for name in part._buffers]
        copies = self._copies(watched)
        numbers = _Numbers()
        with _swapped(copies):
            try:
                yield
            finally:
                drawn = numbers.drawn()
                numbers.put_back()
                after = [part._buffers.get(name) for part, name, _ in copies]
        # By value: a batch norm changes its statistics without an increment of the version counter.
        moved = [not part._buffers[name].equal(new) for (part, name, _), new in zip(copies, after)]
        self._changing[self._module.training] = [(part, name) for (part, name, _), is_moved in zip(copies, moved) if is_moved], drawn

    def contexts(self):
        """Returns the two contexts for torch's checkpointing: around the first run, around the second run."""
        buffers, drawn = self._changing.get(self._module.training, ([], ()))
        return contextlib.nullcontext(), _SecondRun(self._copies(buffers), _Numbers(drawn))

    def _copies(self, buffers):
        return [(part, name, part._buffers[name].detach().clone()) for part, name in buffers if part._buffers.get(name) is not None]


class _SecondRun:
    """Entered once for each backward pass through the same graph."""

    def __init__(self, copies, before):
        self._copies, self._before = copies, before

    def __enter__(self):
        self._now = self._before.again()
        self._before.put_back()
        self._buffers = _swapped([(part, name, copy.clone()) for part, name, copy in self._copies])
        self._buffers.__enter__()

    def __exit__(self, *error):
        self._buffers.__exit__(None, None, None)
        self._now.put_back()


@contextlib.contextmanager
def _swapped(copies):
    """Replaces the buffers by the copies, and restores the unchanged buffers afterwards."""
    originals = [(part, name, part._buffers[name]) for part, name, _ in copies]
    for part, name, copy in copies:
        part._buffers[name] = copy
    try:
        yield copies
    finally:
        for part, name, original in originals:
            part._buffers[name] = original


class _Numbers:
    """The state of random numbers outside torch; only of those that are used, because reading it takes microseconds."""

    def __init__(self, kinds=("python", "numpy")):
        numpy = sys.modules.get("numpy") if "numpy" in kinds else None
        self._numpy = getattr(numpy, "random", None)
        self._kinds = kinds
        self._states = self._read()

    def again(self):
        return _Numbers(self._kinds)

    def drawn(self):
        """Returns which of them have changed."""
        return tuple(kind for kind, state in self._read().items() if _plain(state) != _plain(self._states[kind]))

    def put_back(self):
        if "python" in self._states:
            random.setstate(self._states["python"])
        if "numpy" in self._states:
            self._numpy.set_state(self._states["numpy"])

    def _read(self):
        states = {"python": random.getstate()} if "python" in self._kinds else {}
        if self._numpy is not None:
            states["numpy"] = self._numpy.get_state()
        return states


def _plain(state):
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in state]
