"""Counts the bytes that autograd keeps for the backward pass, in a few sampled steps. A CPU run can measure this memory too.

Measured if the run has knobs, and if LOCKSTEP_MEASURE_SAVED=1 is set (in the run before a knob was changed). From the end of the previous
step to the start of the backward pass, each saved tensor is counted, every storage once. Parameters are left out, because they exist
anyway. Activations of checkpointed blocks are not saved and not counted. Of several micro-batches the largest counts.

torch keeps such hooks on a stack, one per thread. Only the main thread's stack is used; if torch does not report its contents (2.7), the
probe counts them. The probe pushes its hooks only while the stack is empty, and pops them only while they are on top. Code that forbids
hooks (torch.func) finds them removed. If the compiler is in use, nothing is measured, because it would compile again for them.
"""

import functools
import threading
import time

from . import compiler

FIRST_STEPS = (2, 3, 4)  # of this process; the first one creates what later ones only use
EVERY = 256  # steps; counting costs microseconds per tensor
EVERY_S = 300.0  # at the latest, if steps are long


class SavedTensors:
    def __init__(self, probe):
        self._probe = probe
        self._steps = 0
        self._laid_on = time.monotonic()
        self._storages = {}
        self._largest = None
        self._ours = None  # the pair of hooks on torch's stack
        self._stack = None

    def patches(self):
        return {"torch.autograd.graph": self._give_way}

    def _give_way(self, module):
        """Removes the hooks: forbidding hooks raises an error while there are any."""
        original = module.disable_saved_tensors_hooks

        @functools.wraps(original)
        def disable_saved_tensors_hooks(*args, **kwargs):
            self._probe.call(self._take_off)
            return original(*args, **kwargs)

        module.disable_saved_tensors_hooks = disable_saved_tensors_hooks

    def torch_imported(self, torch):
        """While torch is being imported it has no stack yet."""
        self._stack = Stack(torch._C._autograd)

    def step_ended(self):
        """Returns the bytes of the step that has ended, or None; starts to count the next step."""
        self._take_off()
        largest, self._largest, self._storages = self._largest, None, {}
        self._steps += 1
        if self._ours is None and self._is_due(self._steps + 1):
            self._lay_on()
        return largest

    def begin_backward(self):
        if self._ours is None:
            return
        self._largest = max(self._largest or 0, sum(self._storages.values()))
        self._storages = {}

    def end_backward(self):
        """Another micro-batch may follow; what the backward pass itself saved is not an activation."""
        self._storages = {}

    def _is_due(self, step):
        return step in FIRST_STEPS or step % EVERY == 0 or time.monotonic() - self._laid_on > EVERY_S

    def _lay_on(self):
        self._laid_on = time.monotonic()
        if threading.current_thread() is not threading.main_thread() or compiler.is_used():
            return
        if self._stack is None or self._stack.top() is not None:
            return
        self._ours = (self._pack, lambda tensor: tensor)
        self._stack.push(*self._ours)

    def _take_off(self):
        if self._ours is None:
            return
        found = self._stack.top()
        if found is not None and found[0] == self._ours[0]:
            self._stack.pop()
            self._ours = None

    def _pack(self, tensor):
        self._probe.call(self._count, tensor)
        return tensor

    def _count(self, tensor):
        torch = self._probe.torch
        base = tensor if tensor._base is None else tensor._base
        if (base.is_leaf and base.requires_grad) or tensor.layout is not torch.strided:
            return
        local = getattr(tensor, "_local_tensor", tensor)
        storage = local.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()


class Stack:
    """torch's stack of the main thread. `top()` is the pair of hooks on top, or None."""

    def __init__(self, autograd):
        self._autograd = autograd
        self._pushed = []
        if not hasattr(autograd, "_top_saved_tensors_default_hooks"):  # torch 2.7
            self._count(autograd._push_saved_tensors_default_hooks, autograd._pop_saved_tensors_default_hooks)

    def push(self, pack, unpack):
        self._autograd._push_saved_tensors_default_hooks(pack, unpack)

    def pop(self):
        self._autograd._pop_saved_tensors_default_hooks()

    def top(self):
        if hasattr(self._autograd, "_top_saved_tensors_default_hooks"):
            return self._autograd._top_saved_tensors_default_hooks(True)
        return self._pushed[-1] if self._pushed else None

    def _count(self, push, pop):
        """Counts the calls through Python, which are all except those of user-written C++."""

        @functools.wraps(push)
        def pushed(pack, unpack):
            push(pack, unpack)
            if threading.current_thread() is threading.main_thread():
                self._pushed.append((pack, unpack))

        @functools.wraps(pop)
        def popped():
            pop()
            if self._pushed and threading.current_thread() is threading.main_thread():
                self._pushed.pop()

        self._autograd._push_saved_tensors_default_hooks, self._autograd._pop_saved_tensors_default_hooks = pushed, popped
