"""Reports an optimizer's learning rates, and how many parameters the rank trains.

A rate may be a number or a tensor. A tensor on the CPU is read at once; one on the device is copied with the step's other scalars, because
reading it would wait for the device. If a script has more device tensors than KEPT_MAX, no rates are reported, because some of the rates
have no minimum and maximum.
"""

import sys

KEPT_MAX = 8
# They give a torch optimizer flat pieces that are not parameters of the model.
REPACKS_PARAMETERS = ("deepspeed", "megatron")


class Rates:
    """The learning rates of one step: known `numbers`, and `kept` tensors that are being copied from the device."""

    def __init__(self, numbers=(), kept=()):
        self.numbers, self.kept = list(numbers), list(kept)


def rates_of(torch, optimizer, timeline):
    """Returns the rates of all groups; `Rates()` if they are unknown."""
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
    """Returns how many numbers these optimizers train, including shards of other ranks; None if unknown.

    `shard_ranks`: the number of ranks over which FSDP1 shards. A DTensor knows its whole size.
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
