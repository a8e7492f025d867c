"""Counts the samples in a DataLoader's batch, and the tokens if it seems to contain token ids."""

import itertools
from collections.abc import Mapping

DEPTH_MAX = 4  # batches are shallow; deeper nesting is not worth the time


TENSORS_MAX = 16


def measure(torch, batch):
    """Returns (samples, tokens) of this rank's batch; each is None if unknown."""
    tensor = first_tensor(torch, batch, DEPTH_MAX)
    if tensor is None or tensor.dim() == 0:
        return None, None
    ids = tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32, torch.int16)
    return tensor.shape[0], tensor.numel() if ids else None


def first_tensor(torch, value, depth):
    if isinstance(value, torch.Tensor):
        return value
    if depth == 0:
        return None
    if isinstance(value, Mapping):
        ids = value.get("input_ids")
        if isinstance(ids, torch.Tensor):
            return ids
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        return None
    for part in parts:
        found = first_tensor(torch, part, depth - 1)
        if found is not None:
            return found
    return None


def tensors_in(torch, value, depth=DEPTH_MAX):
    """Returns the tensors of a batch in their order, at most TENSORS_MAX."""
    return list(itertools.islice(_tensors(torch, value, depth), TENSORS_MAX))


def _tensors(torch, value, depth):
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 0 and isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(torch, part, depth - 1)
