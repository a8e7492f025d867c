"""What an optimizer steps with: its learning rates, and how many parameters the rank trains.

A rate may be a number, or a tensor: one on the CPU is read at once, one on the device travels with the step's other scalars, since reading it
would wait for the device. Of a script with more device tensors than KEPT_MAX nothing is told: a part of the rates has no smallest and no largest.
"""

import sys

KEPT_MAX = 8
# They give a torch optimizer flat pieces that are no parameters of the model.
REPACKS_PARAMETERS = ("deepspeed", "megatron")


class Rates:
    """The learning rates of one step: `numbers` that are known, `kept` that are on the way from the device."""

    def __init__(self, numbers=(), kept=()):
        self.numbers, self.kept = list(numbers), list(kept)


def rates_of(torch, optimizer, timeline):
    """Over all groups; `Rates()` where they cannot be told."""
    numbers, on_device = [], {}
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, (int, float)):
            numbers.append(float(rate))
        elif not isinstance(rate, torch.Tensor) or rate.numel() != 1:
            return Rates()
        elif rate.is_cpu:
            numbers.append(rate.item())
        else:
            on_device[id(rate)] = rate
    if len(on_device) > KEPT_MAX or not all(timeline.can_keep(rate) for rate in on_device.values()):
        return Rates()
    return Rates(numbers, [timeline.keep(rate) for rate in on_device.values()])


def parameters_of(optimizers, shard_ranks=None):
    """How many numbers these optimizers train, shards of other ranks included; None where it cannot be told.

    `shard_ranks`: over how many ranks FSDP1 shards. A DTensor says its whole size itself.
    """
    if any(name in sys.modules for name in REPACKS_PARAMETERS):
        return None
    plain = whole = 0
    for parameter in {id(p): p for p in parameters_in(optimizers)}.values():
        if hasattr(parameter, "_local_tensor"):
            whole += parameter.numel()
        else:
            plain += parameter.numel()
    return plain * (shard_ranks or 1) + whole or None


def has_dtensors(optimizers):
    return any(hasattr(parameter, "_local_tensor") for parameter in parameters_in(optimizers))


def parameters_in(optimizers):
    return (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
