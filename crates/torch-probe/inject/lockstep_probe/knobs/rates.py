"""`lr_scale` and `lr_schedule`: change the learning rates while an optimizer steps, and restore the script's own rates afterwards.

    rate of a step = what the script or its scheduler has set  x  scale  x  schedule(steps so far)

Other methods fail in some scripts. A rate that is multiplied once is multiplied again by a scheduler with its own base rates, lost in a
script that sets the rate each step, and doubled after a resume from a checkpoint that contains it. With this method, checkpoints and
schedulers never contain the factor. So the rate that the script prints is the rate without the factor.
"""

import functools
import math
import sys
import weakref

from .knob import Knob, KnobError, positive


class Rates(Knob):
    """The common part of both knobs. Two knobs on one panel share the hooks of the first, so that one pair of hooks sets and restores."""

    waits_for = "no torch optimizer has stepped"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._stepping = lambda: None
        self._set = []  # (group, the script's rate, the rate of this step)

    def patches(self):
        return {"torch.optim.optimizer": self._watch}

    def _watch(self, module):
        if self is not self._all()[0]:
            return

        def before(optimizer, args, kwargs):
            if not module.torch.compiler.is_compiling():
                self.guard(self._before_step, optimizer)

        def after(optimizer, args, kwargs):
            if not module.torch.compiler.is_compiling():
                self.guard(self._after_step, optimizer)

        module.register_optimizer_step_pre_hook(before)
        module.register_optimizer_step_post_hook(after)

    def _all(self):
        return [knob for knob in self.panel.knobs if isinstance(knob, Rates)]

    def _before_step(self, optimizer):
        outer = self._stepping()
        if outer is not None and outer is not optimizer and is_running(outer):
            return  # the inner optimizer of one that shards states: the outer one has the rates
        self._restore()  # after a step that raised an exception
        factor = 1.0
        for knob in self._all():
            own = knob.guard(knob.factor, optimizer)
            factor *= 1.0 if own is None else own
        self._stepping = weakref.ref(optimizer)
        if factor != 1.0:
            self._multiply(optimizer, factor)

    def _multiply(self, optimizer, factor):
        for group in optimizer.param_groups:
            if "lr" in group:
                rate = group["lr"]
                group["lr"] = rate * factor  # a rate that is a tensor stays the script's own tensor
                self._set.append((group, rate, group["lr"]))

    def _after_step(self, optimizer):
        if self._stepping() is optimizer:
            self._restore()

    def _restore(self):
        for group, rate, ours in self._set:
            if group["lr"] is ours:
                group["lr"] = rate
        self._set = []
        self._stepping = lambda: None


class LrScale(Rates):
    name = "lr_scale"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._scale = positive(self.name, value)

    def factor(self, optimizer):
        rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
        if not rates:
            raise KnobError(f"{type(optimizer).__name__} has no learning rate")
        if self.panel.state(self.name) != "applied":
            self.applied(
                f"each step is taken at {self._scale:g} times the rate the script or its scheduler has set "
                f"(the first one {float(rates[0]) * self._scale:g} instead of {float(rates[0]):g}); checkpoints keep the script's own rate"
            )
        return self._scale


class LrSchedule(Rates):
    name = "lr_schedule"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._shape, _, steps = value.partition(":")
        if self._shape not in ("constant", "cosine", "linear") or (self._shape == "constant") != (steps == ""):
            raise KnobError(f"lr_schedule is constant, cosine:STEPS or linear:STEPS, and '{value}' is not")
        self._steps = positive("STEPS of lr_schedule", steps, int, 1) if steps else 0
        self._own = ""
        self._seen = weakref.WeakKeyDictionary()  # optimizer -> the script's rates at its last step

    def patches(self):
        return {**super().patches(), "torch.optim.lr_scheduler": self._watch_schedulers}

    def _watch_schedulers(self, module):
        for name in ("LRScheduler", "ReduceLROnPlateau"):  # the latter does not call __init__ of the former
            kind = getattr(module, name)
            kind.__init__ = self._telling(kind.__init__)

    def _telling(self, original):
        @functools.wraps(original)
        def __init__(scheduler, *args, **kwargs):
            self.guard(self._withdraw, f"a scheduler of its own ({type(scheduler).__name__})")
            original(scheduler, *args, **kwargs)

        return __init__

    def _withdraw(self, own):
        self._own = own
        self.failed(f"the schedule is not used: the script has {own}")

    def factor(self, optimizer):
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        before = self._seen.get(optimizer)
        self._seen[optimizer] = rates
        if not self._own and before is not None and before != rates:
            self._withdraw("set another rate between two steps itself")
        if self._own:
            return 1.0
        if self.panel.state(self.name) != "applied":
            end = "for ever" if self._shape == "constant" else f"down to 0 at step {self._steps}"
            self.applied(f"rates follow a {self._shape} schedule from the script's own rate {end}; this run is at step {self.panel.probe.steps}")
        return schedule(self._shape, self._steps, self.panel.probe.steps)


def schedule(shape, steps, done):
    """Returns the factor of the step after `done` steps."""
    if shape == "constant":
        return 1.0
    share = min(1.0, done / steps)
    return 1.0 - share if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * share))


def is_running(optimizer):
    """Returns True if a step of this optimizer is on the call stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False
