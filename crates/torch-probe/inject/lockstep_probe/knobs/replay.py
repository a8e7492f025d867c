"""A forward pass that runs twice and has its effects once.

torch's checkpointing puts back its own random numbers before it runs a block again. Not put back are: Python's and NumPy's
random numbers, and buffers that the block changes as it runs (the running statistics of a batch norm, which would be moved twice a
step). Here the second run finds both as the first one found them, and what it does to them is thrown away.
"""

import contextlib
import random
import sys


class Replay:
    """For one block: what its runs change is learned in a rehearsal, and put back for each second run."""

    def __init__(self, module):
        self._module = module
        self._changing = {}  # training mode -> ([(module, name)] of buffers, which random numbers are drawn)

    def rehearsed(self):
        return self._module.training in self._changing

    @contextlib.contextmanager
    def rehearsal(self):
        """A run without any effect, that learns what a run changes."""
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
        # By value: a batch norm moves its statistics without a word to the version counter.
        moved = [not part._buffers[name].equal(new) for (part, name, _), new in zip(copies, after)]
        self._changing[self._module.training] = [(part, name) for (part, name, _), is_moved in zip(copies, moved) if is_moved], drawn

    def contexts(self):
        """The two contexts torch's checkpointing asks for: around the first run, around the second."""
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
    """The copies in the buffers' places, and the buffers themselves back afterwards, untouched."""
    originals = [(part, name, part._buffers[name]) for part, name, _ in copies]
    for part, name, copy in copies:
        part._buffers[name] = copy
    try:
        yield copies
    finally:
        for part, name, original in originals:
            part._buffers[name] = original


class _Numbers:
    """The state of the random numbers that torch does not know of; of those that are drawn, since reading it takes microseconds."""

    def __init__(self, kinds=("python", "numpy")):
        numpy = sys.modules.get("numpy") if "numpy" in kinds else None
        self._numpy = getattr(numpy, "random", None)
        self._kinds = kinds
        self._states = self._read()

    def again(self):
        return _Numbers(self._kinds)

    def drawn(self):
        """Which of them are others by now."""
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
