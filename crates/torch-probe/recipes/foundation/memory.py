"""Bytes, counted from the tensors: what a rank holds for the model, and what a forward pass keeps for the backward pass.

An allocator's peak includes everything, but exists only on GPUs. On CPUs the memory of the process says nothing about a small model: it
never shrinks, and most of it is libraries.
"""

import contextlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Held:
    """Of one rank, in bytes."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self):
        return self.parameters + self.gradients + self.optimizer


def held(model, optimizer):
    """Call it between the backward pass and `zero_grad`: then all tensors exist."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return Held(size(parameters), size(gradients), size(states))


def size(tensors):
    """Returns the size of tensors; for a sharded tensor only the part on this rank."""
    return sum(local.numel() * local.element_size() for local in map(_local, tensors))


def whole_parameters(model):
    """Returns the bytes of parameters that are gathered at this moment: between forward and backward, those that stayed gathered after the
    forward pass."""
    return size([parameter for parameter in model.parameters() if not hasattr(parameter, "to_local")])


class Saved:
    """Counts what autograd keeps for the backward pass while `counting`, without the parameters, which exist anyway."""

    def __init__(self, model):
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in map(_local, model.parameters())}
        self.bytes = 0
        self._kept = []  # alive until the end: a reused address would be counted as the same tensor

    @contextlib.contextmanager
    def counting(self):
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield
        self._kept.clear()

    def _pack(self, tensor):
        storage = _local(tensor).untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._kept.append(storage)
            self.bytes += storage.nbytes()
        return tensor


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
