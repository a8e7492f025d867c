"""Detects when a script's model is first used, for the knobs that change models.

Detected are the arguments of DistributedDataParallel, FSDP and `fully_shard`, before they wrap the model, and every module that the script
itself calls in its first steps. A knob inspects each and chooses the one that it can use. The hook on calls is removed once every knob has
decided.

A module is changed through its class: `stand_in` gives it a class derived from its own, like `fully_shard` and `parametrize`. The keys of
its state_dict, `isinstance` and its signature stay; a copy or a pickle of it has the original class, and contains nothing of the probe.
"""

import copyreg
import functools
import weakref

from ..errors import is_of_signal_handler
from .knob import KnobError

FULLY_SHARD = (
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.distributed._composable.fsdp.fully_shard",  # its module before torch 2.6
)


class Models:
    def __init__(self, panel):
        self._panel = panel
        self._knobs = [knob for knob in panel.knobs if hasattr(knob, "see")]
        # Modules inside a model that was already inspected: id -> weak reference. A knob that finds nothing looks on until the end of the
        # script, and must not keep models alive that the script has dropped. A later module may have the id of one that is gone.
        self._known = {}
        self._handle = None

    def guard(self, function, *args):
        """Guard for a watcher that is not part of a knob."""
        try:
            return function(*args) if self._panel.on else None
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            self._panel.probe.fault(error)
            return None

    def patches(self):
        if not self._knobs:
            return {}
        found = {
            "torch.nn.modules.module": self._watch_calls,
            "torch.nn.parallel.distributed": self._watch_ddp,
            "torch.distributed.fsdp.fully_sharded_data_parallel": self._watch_fsdp1,
        }
        return {**found, **dict.fromkeys(FULLY_SHARD, self._watch_fully_shard)}

    def _watch_calls(self, module):
        def before(called, _inputs):
            torch = self._panel.torch
            # The compiler follows this function into the script's own graph: it must find nothing to compile.
            if torch is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            if not self._knows(called):
                self.guard(self._called, called)

        self._handle = module.register_module_forward_pre_hook(before)

    def _called(self, model):
        if not self._waiting():
            self._handle.remove()
            self._known = {}
            return
        wraps_known = any(part is not model and self._knows(part) for part in model.modules())
        self._remember(model)
        if any(parameter.requires_grad for parameter in model.parameters()):
            self._show(model, whole=not wraps_known, running=True)

    def _knows(self, module):
        known = self._known.get(id(module))
        return known is not None and known() is module

    def _remember(self, model):
        # A script that makes a model in each step leaves dead references behind.
        self._known = {key: known for key, known in self._known.items() if known() is not None}
        self._known.update((id(part), weakref.ref(part)) for part in model.modules())

    def _watch_ddp(self, module):
        self._before_init(module.DistributedDataParallel, whole=True)

    def _watch_fsdp1(self, module):
        self._before_init(module.FullyShardedDataParallel, whole=False)

    def _before_init(self, kind, whole):
        original = kind.__init__

        @functools.wraps(original)
        def __init__(wrapper, module, *args, **kwargs):
            self.guard(self._given, module, whole)
            original(wrapper, module, *args, **kwargs)

        kind.__init__ = __init__

    def _watch_fully_shard(self, module):
        original = module.fully_shard
        if getattr(original, "_lockstep_models", False):
            return

        @functools.wraps(original)
        def fully_shard(module, *args, **kwargs):
            for model in module if isinstance(module, (list, tuple)) else [module]:
                self.guard(self._given, model, False)
            return original(module, *args, **kwargs)

        fully_shard._lockstep_models = True
        module.fully_shard = fully_shard

    def _given(self, model, whole):
        if whole:
            self._remember(model)
        self._show(model, whole, running=False)

    def _show(self, model, whole, running):
        """`whole`: the model as the script calls it, not a part. `running`: its own forward pass has already started."""
        for knob in self._waiting():
            knob.guard(knob.see, model, whole, running)

    def _waiting(self):
        return [knob for knob in self._knobs if not knob.decided()]


_kinds = {}  # (class, forward) -> the derived class, so that modules of one class keep one class


def stand_in(torch, module, forward):
    """Makes `forward(base_forward, module, args, kwargs)` run instead of the module's own forward. Raises KnobError if it cannot."""
    base = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise KnobError(f"{base.__name__} is compiled by TorchScript")
    if "forward" in vars(module):
        raise KnobError(f"the forward of a {base.__name__} is replaced on the module itself")
    kind = _kinds.get((base, forward))
    if kind is None:
        kind = _kinds[base, forward] = _derived(torch, base, forward)
    module.__class__ = kind


def _derived(torch, base, forward):
    original = base.forward

    @functools.wraps(original)  # libraries read the names of columns from its signature
    def standing_in(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        return forward(original, self, args, kwargs)

    def __reduce_ex__(self, protocol):
        function, arguments, *rest = base.__reduce_ex__(self, protocol)
        if arguments == (kind,):  # made by __newobj__, for which pickle accepts only the object's own class
            function, arguments = copyreg._reconstructor, (base, object, None)
        return (function, arguments, *rest)

    named = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    kind = type(base.__name__, (base,), {**named, "forward": standing_in, "__reduce_ex__": __reduce_ex__})
    return kind
