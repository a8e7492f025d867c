"""Statistics of a batch: the mean and the spread of its inputs and labels, and whether they are finite.

Ranks with unusual shards, wrong labels or broken preprocessing differ in these values from their peers, although each batch looks normal.
Only tensors on the CPU are measured, as loaders return them; of a large tensor only every n-th element. See Budget in norms.py for the
measured steps.
"""

from .batch import tensors_in

ELEMENTS_MAX = 65_536
EVERY_MAX = 1_024  # steps


def statistics(torch, batch):
    """Returns the fields of a step record: of the first tensor as `input`, of the last one as `label`."""
    tensors = [tensor for tensor in tensors_in(torch, batch) if tensor.is_cpu and tensor.numel() > 0 and not tensor.is_complex()]
    if not tensors:
        return {}
    fields = described(torch, tensors[0], "input")
    if len(tensors) > 1:
        fields.update(described(torch, tensors[-1], "label"))
    return fields


def described(torch, tensor, name):
    with torch.no_grad():
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
        some = flat[:: flat.numel() // ELEMENTS_MAX + 1].to(torch.float32)
        finite = torch.isfinite(some)
        bad = 1.0 - finite.sum().item() / some.numel()
        if bad:
            some = some[finite]
        fields = {f"{name}_nonfinite": bad} if tensor.is_floating_point() else {}
        if some.numel() > 0:
            deviation, mean = torch.std_mean(some, correction=0)
            fields.update({f"{name}_mean": mean.item(), f"{name}_deviation": deviation.item()})
        return fields
