"""`amp`: runs the model's forward pass in bfloat16 or float16 with autocast, or (off) without the script's own autocast.

The outputs are converted to float32, so that a loss that the script computes outside is computed as before. float16 needs a GradScaler,
which cannot be added to a script: it is refused unless the script has one.
"""

import functools

from .knob import Knob, KnobError
from .models import stand_in


class Precision(Knob):
    name = "amp"
    waits_for = "no model with trainable parameters was called"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        if value not in ("off", "bf16", "fp16"):
            raise KnobError(f"amp is off, bf16 or fp16, and '{value}' is not")
        self._mode = value
        self._has_scaler = False
        self._refusal = None
        self._models = []
        self._settled = False
        if value == "off":
            self.waits_for = "the script opens no autocast"

    def decided(self):
        """Several models may be called in the first steps, so the decision is made only when they have ended."""
        return self._mode == "off" or self._refusal is not None or self._settled

    def settle(self):
        self._settled = True
        super().settle()

    def patches(self):
        if self._mode == "off":
            return {"torch.amp.autocast_mode": self._watch_autocast}
        return {"torch.amp.grad_scaler": self._watch_scaler}

    def _watch_autocast(self, module):
        original = module.autocast.__init__

        @functools.wraps(original)
        def __init__(autocast, device_type, dtype=None, enabled=True, cache_enabled=None):
            if self.panel.on and enabled and not module.torch.compiler.is_compiling():
                enabled = False
                self.guard(self.applied, "the script's autocast is turned off: everything is computed in the parameters' own precision")
            original(autocast, device_type, dtype, enabled, cache_enabled)

        module.autocast.__init__ = __init__

    def _watch_scaler(self, module):
        original = module.GradScaler.__init__

        @functools.wraps(original)
        def __init__(scaler, *args, **kwargs):
            original(scaler, *args, **kwargs)
            self._has_scaler = True

        module.GradScaler.__init__ = __init__

    def see(self, model, whole, running):
        if not whole or self._mode == "off":
            return
        torch = self.panel.torch
        parameter = next(parameter for parameter in model.parameters() if parameter.requires_grad)
        device = parameter.device.type
        reason = self._reason_against(torch, model, parameter, device) if self._refusal is None else self._refusal
        if reason is not None:
            self._refusal = reason
            self._models = []
            raise KnobError(reason)
        dtype = torch.bfloat16 if self._mode == "bf16" else torch.float16
        run = functools.partial(self._cast, torch, device, dtype)
        stand_in(torch, model, run)
        if running:
            self._enter_now(torch, model, device, dtype)
        self._models.append(type(model).__name__)
        self.applied(f"the forward pass of {', '.join(self._models)} is computed in {self._mode} by autocast, its outputs come back in float32")

    def _reason_against(self, torch, model, parameter, device):
        if type(model).__name__ == "OptimizedModule" or getattr(model, "_compiled_call_impl", None) is not None:
            return "the model is compiled (torch.compile)"
        if parameter.dtype != torch.float32:
            return f"the model's parameters are {str(parameter.dtype).removeprefix('torch.')} already"
        if autocast_is_on(torch, device):
            return "the script has an autocast of its own"
        if self._mode == "fp16" and device == "cpu":
            return "float16 on CPUs loses more than it gains; bf16 works"
        if self._mode == "fp16" and not self._has_scaler:
            return "float16 without a GradScaler loses small gradients, and the script has none; bf16 needs none"
        if self._mode == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported():
            return "this GPU computes no bfloat16"
        return None

    def _cast(self, torch, device, dtype, forward, module, args, kwargs):
        if self._refusal is not None or autocast_is_on(torch, device):
            return forward(module, *args, **kwargs)
        with torch.autocast(device, dtype=dtype):
            result = forward(module, *args, **kwargs)
        return in_float32(torch, dtype, result)

    def _enter_now(self, torch, model, device, dtype):
        """Handles a forward pass that has already started: torch has already looked up its function."""
        autocast = torch.autocast(device, dtype=dtype)
        autocast.__enter__()

        def after(_model, _inputs, result):
            handle.remove()
            autocast.__exit__(None, None, None)
            return in_float32(torch, dtype, result)

        handle = model.register_forward_hook(after, always_call=True)


def autocast_is_on(torch, device):
    try:
        return torch.is_autocast_enabled(device)
    except TypeError:  # before torch 2.4 there is one function per device
        return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()


def in_float32(torch, dtype, value):
    """Converts tensors in plain containers; values of other classes are unchanged."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == dtype else value
    if type(value) in (list, tuple):
        return type(value)(in_float32(torch, dtype, part) for part in value)
    if type(value) is dict:
        return {name: in_float32(torch, dtype, part) for name, part in value.items()}
    return value
