"""`grad_clip_norm`: the gradients' norm is limited before each optimizer step.

    script clips itself     its own call gets the smaller of the two limits
    GradScaler              unscale, clip, step: the order that torch documents, so that skipped steps and the scale do not change
    optimizer.step(closure) clipped after the gradients are computed, at the closure's end
    else                    clipped at the start of the step

torch's own `clip_grad_norm_` clips, on all ranks at the same place, because it is a collective over sharded gradients.
"""

import functools
import weakref

from .knob import Knob, positive


class GradientClipping(Knob):
    name = "grad_clip_norm"
    waits_for = "no torch optimizer has stepped"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._norm = positive(self.name, value)
        self._clipped_by_script = False  # since the last step
        self._clipped_for = lambda: None  # the optimizer whose gradients were clipped before its step
        self._flat = weakref.WeakSet()  # FSDP1's modules: only they can measure their gradients
        self._busy = False
        self._clip = None

    def patches(self):
        return {
            "torch.nn.utils.clip_grad": self._watch_clipping,
            "torch.optim.optimizer": self._watch_steps,
            "torch.amp.grad_scaler": self._watch_scaler,
            "torch.distributed.fsdp.fully_sharded_data_parallel": self._watch_fsdp1,
        }

    # === where the script clips ===

    def _watch_clipping(self, module):
        original = module.clip_grad_norm_

        @functools.wraps(original)
        def clip_grad_norm_(parameters, max_norm, norm_type=2.0, *args, **kwargs):
            if not self._busy and not module.torch.compiler.is_compiling():
                max_norm = self._smaller(max_norm, norm_type)
            return original(parameters, max_norm, norm_type, *args, **kwargs)

        module.clip_grad_norm_ = clip_grad_norm_

    def _watch_fsdp1(self, module):
        kind = module.FullyShardedDataParallel
        original_init, original = kind.__init__, kind.clip_grad_norm_

        @functools.wraps(original_init)
        def __init__(model, *args, **kwargs):
            original_init(model, *args, **kwargs)
            self._flat.add(model)

        @functools.wraps(original)
        def clip_grad_norm_(model, max_norm, norm_type=2.0):
            return original(model, max_norm if self._busy else self._smaller(max_norm, norm_type), norm_type)

        kind.__init__, kind.clip_grad_norm_ = __init__, clip_grad_norm_

    def _smaller(self, max_norm, norm_type):
        """Returns the limit for the script's own call."""
        smaller = self.guard(self._compare, max_norm, norm_type)
        return max_norm if smaller is None else smaller

    def _compare(self, max_norm, norm_type):
        if float(norm_type) != 2.0:
            return max_norm  # another kind of norm: both limits apply, ours at the start of the step
        self._clipped_by_script = True
        if float(max_norm) <= self._norm:
            self.applied(f"the script clips to a norm of {float(max_norm):g} itself, which is smaller and stays")
            return max_norm
        self.applied(f"the script clips to a norm of {float(max_norm):g} itself; its call now clips to {self._norm:g}")
        return self._norm

    # === where it does not ===

    def _watch_steps(self, module):
        def before(optimizer, args, kwargs):
            if not module.torch.compiler.is_compiling():
                return self.guard(self._before_step, optimizer, args, kwargs)

        module.register_optimizer_step_pre_hook(before)

    def _before_step(self, optimizer, args, kwargs):
        """Clips now, or returns the arguments with a closure that clips."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._clip_once(optimizer)
            return None
        if type(optimizer).__name__ == "LBFGS":
            self.failed("nothing is clipped: LBFGS compares the gradients of several passes, which clipping would falsify")
            return None
        clipping = functools.wraps(closure)(functools.partial(self._clipping_closure, closure, optimizer))
        if len(args) > 1:
            return (args[0], clipping, *args[2:]), kwargs
        return args, {**kwargs, "closure": clipping}

    def _clipping_closure(self, closure, optimizer):
        loss = closure()
        self.guard(self._clip_once, optimizer)
        return loss

    def _clip_once(self, optimizer):
        done = self._clipped_by_script or self._clipped_for() is optimizer
        self._clipped_by_script, self._clipped_for = False, lambda: None
        if not done:
            self._clip_now(optimizer)

    def _watch_scaler(self, module):
        kind = module.GradScaler
        original = kind.step

        @functools.wraps(original)
        def step(scaler, optimizer, *args, **kwargs):
            if scaler.is_enabled() and not self._clipped_by_script:
                self.guard(self._unscale_and_clip, scaler, optimizer, module.OptState)
            return original(scaler, optimizer, *args, **kwargs)

        kind.step = step

    def _unscale_and_clip(self, scaler, optimizer, states):
        state = scaler._per_optimizer_states[id(optimizer)]["stage"]
        if state is states.STEPPED:
            return  # a mistake of the script, which torch reports
        if state is states.READY:
            scaler.unscale_(optimizer)
        self._clip_now(optimizer)
        self._clipped_for = weakref.ref(optimizer)

    def _clip_now(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not parameters or any(p.grad.layout is not self.panel.torch.strided for p in parameters):
            if parameters:
                self.failed("nothing is clipped: the gradients are sparse")
            return
        self._busy = True
        try:
            flat = self._flat_model(parameters)
            if flat is not None:
                flat.clip_grad_norm_(self._norm)
            else:
                self.panel.torch.nn.utils.clip_grad_norm_(parameters, self._norm)
        finally:
            self._busy = False
        how = "FSDP's own clip_grad_norm_" if flat is not None else "clip_grad_norm_"
        self.applied(f"gradients of {type(optimizer).__name__} are clipped to a norm of {self._norm:g} before each step, by {how}")

    def _flat_model(self, parameters):
        """Returns the FSDP1 model that owns the gradients, or None."""
        roots = [model for model in self._flat if model._is_root]
        mine = {id(parameter) for parameter in parameters}
        return next((root for root in roots if any(id(parameter) in mine for parameter in root.parameters())), None)
