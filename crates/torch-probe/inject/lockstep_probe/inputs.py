"""Statistics of a batch: the mean and the spread of its inputs and labels, whether they are finite, the share of padding, and the share of
the most frequent class.

Ranks with unusual shards, wrong labels or broken preprocessing differ in these values from their peers, although each batch looks normal.
Only tensors on the CPU are measured, as loaders return them; of a large tensor only every n-th element. See Budget in norms.py for the
measured steps.

    input, label     the first and the last tensor of the batch; in a mapping, its labels
    padding          of `attention_mask`, if it has the shape of `input_ids`: the only place in a batch where padding has a known form
    classes          of whole-number labels of a mapping, or of the second of two tensors
"""

import math
from collections.abc import Mapping

from .batch import tensors_in

ELEMENTS_MAX = 65_536
EVERY_MAX = 1_024  # steps
LABELS = ("labels", "label", "targets", "target", "y")
LABELS_MIN = 16  # of fewer labels, the share of the most frequent class depends on their number
CLASSES_MAX = 4_096
IGNORED = -100  # a label that torch's losses leave out


def statistics(torch, batch):
    """Returns the fields of a step record."""
    tensors = [tensor for tensor in tensors_in(torch, batch) if is_measured(torch, tensor)]
    if not tensors:
        return {}
    fields = described(torch, tensors[0], "input")
    labels = named(torch, batch, *LABELS)
    if len(tensors) > 1:
        fields.update(described(torch, tensors[-1] if labels is None else labels, "label"))
    if labels is None and len(tensors) == 2 and not isinstance(batch, Mapping):
        labels = tensors[1]
    shares = {"label_top_ratio": top_share(torch, labels), "padding_ratio": padding_share(torch, batch)}
    fields.update((name, share) for name, share in shares.items() if share is not None)
    return fields


def is_measured(torch, value):
    if not isinstance(value, torch.Tensor) or hasattr(value, "_local_tensor"):  # reading a DTensor may take a collective
        return False
    return value.is_cpu and value.layout == torch.strided and value.numel() > 0 and not value.is_complex()


def named(torch, batch, *names):
    """Returns the first of these tensors that a batch has; None if it has none, or if it is not a mapping."""
    found = (batch.get(name) for name in names) if isinstance(batch, Mapping) else ()
    return next((value for value in found if is_measured(torch, value)), None)


def described(torch, tensor, name):
    with torch.no_grad():
        some = some_of(tensor).to(torch.float32)
        finite = torch.isfinite(some)
        bad = 1.0 - finite.sum().item() / some.numel()
        if bad:
            some = some[finite]
        fields = {f"{name}_nonfinite": bad} if tensor.is_floating_point() else {}
        if some.numel() > 0:
            deviation, mean = torch.std_mean(some, correction=0)
            fields.update({f"{name}_mean": mean.item(), f"{name}_deviation": deviation.item()})
        return fields


def padding_share(torch, batch):
    """Returns the share of padding among the tokens; None if it is unknown."""
    ids, mask = named(torch, batch, "input_ids"), named(torch, batch, "attention_mask")
    if ids is None or mask is None or mask.shape != ids.shape or mask.dim() != 2 or mask.is_floating_point():
        return None
    some = some_of(mask).to(torch.int64)
    if some.min().item() < 0 or some.max().item() > 1:
        return None
    return 1.0 - some.sum().item() / some.numel()


def top_share(torch, labels):
    """Returns the share of the most frequent class among the labels; None if they are not classes, or too few."""
    if labels is None or labels.is_floating_point():
        return None
    some = some_of(labels).to(torch.int64)
    some = some[some != IGNORED]
    if some.numel() < LABELS_MIN or some.min().item() < 0:
        return None
    highest = some.max().item()
    is_matrix = labels.dim() == 2 and labels.shape[1] > 1
    if highest >= CLASSES_MAX or (highest <= 1 and is_matrix):  # zeros and ones in a matrix may be one column per class
        return None
    return torch.bincount(some).max().item() / some.numel()


def some_of(tensor):
    """Returns at most ELEMENTS_MAX elements. The stride and the last dimension have no common factor, so all columns are in them."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
    stride, columns = flat.numel() // ELEMENTS_MAX + 1, tensor.shape[-1] if tensor.dim() > 1 else 1
    while math.gcd(stride, columns) > 1:
        stride += 1
    return flat[::stride]
