"""`activation_checkpointing`: a model's repeated blocks keep no activations and run again in the backward pass.

    none          unchanged script               every=N        every N-th block
    block         every repeated block           stage          the modules that hold the blocks, as a whole
    sequential=N  N parts of the largest nn.Sequential, the last one kept, like torch's checkpoint_sequential; 1 means all of it

Before its first checkpointed pass each block is rehearsed: run once without effects, and compared with the real run. A block
whose two results differ, or that changes its own inputs, would get wrong gradients from a second run: then nothing is checkpointed.
"""

import functools

from . import blocks
from .knob import Knob, KnobError, positive
from .models import stand_in
from .replay import Replay

CLOSE = 1e-3  # relative; a CPU returns the same bits, a GPU's atomics do not, and a lost dropout mask differs by much more
PATHS_MAX = 4  # number of paths in the answer
WHOLE = "; warning: one part holds every block, so the backward pass needs all their activations at once and the peak hardly falls"
LAYERS = "; warning: each block is a single layer, which saves little and computes everything twice"
CACHES = ("past_key_value", "past_key_values", "layer_past")  # a run changes a key-value cache, so it must not run twice


class ActivationCheckpointing(Knob):
    name = "activation_checkpointing"
    waits_for = "no model with repeated blocks (at least three modules of one class in a ModuleList or Sequential) was called"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._mode, self._count = parse(value)
        self._planned = None  # what is checkpointed, as text; None until a model is chosen
        self._off = False
        self._rehearsed = set()
        self._expected = 0
        self._replays = {}
        if self._mode == "none":
            self._off = True
            self.applied("nothing is injected; what the script itself checkpoints stays as it is")

    def decided(self):
        return self._off or self._planned is not None

    def see(self, model, whole, running):
        torch = self.panel.torch
        found = blocks.find(torch, model)
        if not found:
            return
        reason = refusal(torch, model)
        if reason is not None:
            self._give_up(reason)
            return
        targets, warning = self._targets(torch, model, found)
        for _, module in targets:
            stand_in(torch, module, self._run_parts if self._mode == "sequential" else self._run_whole)
        self._expected = len(targets) * (self._parts() if self._mode == "sequential" else 1)
        self._planned = self._describe(model, found, targets) + warning

    def settle(self):
        if self._off:
            return  # the reason is already reported
        if self._planned is None:
            super().settle()
        elif not self._rehearsed:
            self._give_up("its blocks are not run as Python: they are part of a compiled function, or run without gradients")
        else:
            self.applied(self._planned)

    # === what to checkpoint ===

    def _targets(self, torch, model, found):
        """Returns [(path, module)] and a warning, or raises KnobError."""
        if self._mode == "stage":
            return self._stages(model, found)
        if self._mode == "sequential":
            return self._sequence(torch, model)
        chosen = found[:: self._count]
        leaves = all(next(module.children(), None) is None for _, module in chosen)
        return chosen, LAYERS if leaves else ""

    def _stages(self, model, found):
        parts = dict(model.named_modules())
        stages = {}
        for path, _ in found:
            stage = nearest_callable(parts, path)
            if stage is not None:
                stages[stage] = parts[stage]
        if not stages:
            raise KnobError("the model has no stages: its blocks hang from a list of the model itself, which the script's own loop walks")
        alone = len(stages) == 1
        return list(stages.items()), WHOLE if alone else ""

    def _sequence(self, torch, model):
        plain = [
            (path, module)
            for path, module in model.named_modules()
            if isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward and len(module) >= self._count
        ]
        if not plain:
            raise KnobError(f"the model has no nn.Sequential of {self._count} modules or more; a loop of the script's own cannot be split")
        return [max(plain, key=lambda member: blocks.trainable(member[1]))], WHOLE if self._count == 1 else ""

    def _parts(self):
        """Splits a sequence. The last part keeps its activations: they are needed at once, so computing them again would save nothing."""
        return max(1, self._count - 1)

    def _describe(self, model, found, targets):
        share = sum(blocks.trainable(module) for _, module in targets) / max(1, blocks.trainable(model))
        kinds = ", ".join(sorted({type(module).__name__ for _, module in targets}))
        paths = ", ".join(path for path, _ in targets[:PATHS_MAX]) + (", …" if len(targets) > PATHS_MAX else "")
        if self._mode == "sequential":
            what = f"{self._parts()} of {self._count} parts of the Sequential {paths or 'that is the model'}"
        elif self._mode == "stage":
            what = f"{len(targets)} stages ({kinds}: {paths}) with {len(found)} blocks"
        else:
            what = f"{len(targets)} of {len(found)} blocks ({kinds}: {paths})"
        return f"activations of {what} are computed again in the backward pass; they hold {share:.0%} of the trainable parameters"

    # === running it ===

    def _run_whole(self, forward, module, args, kwargs):
        if self._off or not self.panel.torch.is_grad_enabled() or caches(kwargs):
            return forward(module, *args, **kwargs)
        return self._checkpointed(module, module, functools.partial(forward, module), args, kwargs)

    def _run_parts(self, forward, module, args, kwargs):
        if self._off or not self.panel.torch.is_grad_enabled() or len(args) != 1 or kwargs:
            return forward(module, *args, **kwargs)
        layers = list(module)
        size = len(layers) // self._count
        value = args[0]
        for part in range(self._parts()):
            run = functools.partial(in_turn, layers[part * size : (part + 1) * size])
            value = self._checkpointed((module, part), module, run, (value,), {})
        return value if self._count == 1 else in_turn(layers[(self._count - 1) * size :], value)

    def _checkpointed(self, key, module, run, args, kwargs):
        replay = self._replays.get(key)
        if replay is None:
            replay = self._replays[key] = Replay(module)
        rehearsed = ()
        if not replay.rehearsed():
            rehearsed = self.guard(self._rehearse, replay, run, args, kwargs)
            if rehearsed is None:
                self._off = True
                return run(*args, **kwargs)
        result = self._twice(replay, run, args, kwargs)
        if rehearsed:
            self.guard(self._compare, key, rehearsed[0], result)
        return result

    def _twice(self, replay, run, args, kwargs):
        names = list(kwargs)  # torch's own keyword arguments must not collide with the block's

        def call(*values):
            return run(*values[: len(args)], **dict(zip(names, values[len(args) :])))

        checkpoint = self.panel.torch.utils.checkpoint.checkpoint
        checkpoint = getattr(checkpoint, "__wrapped__", checkpoint)  # the same function inside, without importing the compiler
        return checkpoint(call, *args, *kwargs.values(), use_reentrant=False, preserve_rng_state=True, context_fn=replay.contexts)

    def _rehearse(self, replay, run, args, kwargs):
        """Runs the block on copies without effects. Returns [its result]; raises if it cannot run twice."""
        torch = self.panel.torch
        args, kwargs = copied(torch, args), copied(torch, kwargs)
        inputs = tensors(torch, [args, kwargs])
        versions = [tensor._version for tensor in inputs]
        devices = sorted({tensor.device.index for tensor in inputs if tensor.is_cuda})
        kept_aside = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)  # hides them from counters
        with replay.rehearsal(), torch.random.fork_rng(devices=devices), kept_aside:
            result = run(*args, **kwargs)
        if versions != [tensor._version for tensor in inputs]:
            raise KnobError("a block changes its own input in place, so that it cannot be run again")
        return [[tensor.detach() for tensor in tensors(torch, result)]]

    def _compare(self, key, expected, result):
        torch = self.panel.torch
        given = [tensor.detach() for tensor in tensors(torch, result)]
        same = len(given) == len(expected) and all(alike(torch, a, b) for a, b in zip(expected, given))
        if not same:
            self._give_up("a block does not give the same result twice for the same input and random numbers")
            return
        self._rehearsed.add(key)
        if len(self._rehearsed) == self._expected and not self._off:
            self.applied(self._planned)

    def _give_up(self, reason):
        self._off = True
        self.failed(f"nothing is checkpointed: {reason}")


def parse(value):
    """Returns (mode, N); `block` is every=1."""
    if value in ("none", "stage"):
        return value, 1
    if value == "block":
        return "block", 1
    mode, _, number = value.partition("=")
    if mode == "every":
        return "block", positive("N of every=N", number, int, 1)
    if mode == "sequential":
        return "sequential", positive("N of sequential=N", number, int, 1)
    raise KnobError(f"activation_checkpointing is none, block, every=N, stage or sequential=N, and '{value}' is not")


def refusal(torch, model):
    """Returns why this model must not be changed, or None."""
    for module in model.modules():
        kind = type(module).__name__
        if kind == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return "the model is compiled (torch.compile), and the compiler chooses itself what it keeps"
        if isinstance(module, torch.jit.ScriptModule):
            return "the model is compiled (TorchScript)"
        if kind == "CheckpointWrapper" or getattr(module, "gradient_checkpointing", False) is True:
            return "the script checkpoints its activations itself"
    return None


def nearest_callable(parts, path):
    """Returns the path of the closest module around a block that has its own forward, except the model itself; or None."""
    while "." in path:
        path = path.rpartition(".")[0]
        if type(parts[path]).__name__ not in ("ModuleList", "ModuleDict"):
            return path
    return None


def in_turn(layers, value):
    for layer in layers:
        value = layer(value)
    return value


def caches(kwargs):
    return bool(kwargs.get("use_cache")) or any(kwargs.get(name) is not None for name in CACHES)


def tensors(torch, value):
    """Returns every tensor in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for part in value for tensor in tensors(torch, part)]


def copied(torch, value):
    """Returns the value with a copy of each tensor in its plain containers."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)(copied(torch, part) for part in value)
    if type(value) is dict:
        return {name: copied(torch, part) for name, part in value.items()}
    return value


def alike(torch, a, b):
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    return not a.is_floating_point() or torch.allclose(a, b, rtol=CLOSE, atol=CLOSE, equal_nan=True)
