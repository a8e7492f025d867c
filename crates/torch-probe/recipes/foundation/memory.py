"""Bytes, counted from the tensors: what a rank holds for the model, and what a forward pass keeps for the backward pass.

An allocator's peak says more, with everything in it, and there is one on GPUs only. On CPUs the process's memory says nothing
about a small model: it never shrinks, and most of it is libraries.
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
    """Between the backward pass and `zero_grad`: then everything is there."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return Held(size(parameters), size(gradients), size(states))


def size(tensors):
    """Of a sharded tensor only what lies on this rank."""
    return sum(local.numel() * local.element_size() for local in map(_local, tensors))


def whole_parameters(model):
    """Bytes of parameters that lie here gathered at this moment: between forward and backward, those that stayed so after the forward pass."""
    return size([parameter for parameter in model.parameters() if not hasattr(parameter, "to_local")])


class Saved:
    """Counts what autograd keeps for the backward pass while `counting`; the parameters are there anyway and do not count."""

    def __init__(self, model):
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in map(_local, model.parameters())}
        self.bytes = 0
        self._kept = []  # alive until the end: an address that is free again would be taken for the same tensor

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
