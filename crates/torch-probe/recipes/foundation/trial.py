"""Compares variants of training for a few steps before training starts: what each costs and what each learns.

Each variant is built again in each round, because two of them at once would add to each other's peak memory. The rounds alternate, so that
load on the machine affects both. All start with the same weights, and use the same batches and the same dropout.
"""

import contextlib
import gc
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from . import memory
from .watched import unwatched


@dataclass
class Way:
    """`build` returns a model and its optimizer, on the trial's device. `autocast` is entered for forward passes; `scaler` creates a
    GradScaler."""

    name: str
    build: object
    autocast: object = contextlib.nullcontext
    scaler: object = None


@dataclass
class Costs:
    """Costs of one rank, in bytes; None if not counted."""

    losses: list = field(default_factory=list)
    step_s: list = field(default_factory=list)
    held: memory.Held = None
    saved_bytes: int = 0
    whole_parameters_bytes: int = 0
    peak_bytes: int = None

    @property
    def fastest_step_s(self):
        """Returns the fastest step: other load only makes steps slower, so the fastest one says most about the variant."""
        return min(self.step_s)

    @property
    def memory_bytes(self):
        """Returns the allocator's peak if there is one, else what the forward pass saved."""
        return self.saved_bytes if self.peak_bytes is None else self.peak_bytes

    def in_words(self):
        peak = "" if self.peak_bytes is None else f", allocator peak {self.peak_bytes} bytes"
        time = f", {self.fastest_step_s * 1000:.1f} ms a step" if self.step_s else ""
        return f"saved for backward {self.saved_bytes} bytes{peak}{time}"


def compare(ways, batches, device, rounds=1):
    """Returns the costs of each variant, in their order. Each round runs one step per batch; the first step is not timed. All ranks call it
    together."""
    costs = [Costs() for _ in ways]
    with unwatched():
        for number in range(rounds):
            for way, cost in zip(ways, costs):
                _run(way, cost, batches, device, first=number == 0)
    return costs


def _run(way, cost, batches, device, first):
    cuda = device.type == "cuda"
    gc.collect()  # wrapped models have reference cycles: the previous variant must be gone
    before = torch.cuda.memory_allocated(device) if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    model, optimizer = way.build()
    scaler = way.scaler() if way.scaler else None
    torch.manual_seed(dist.get_rank())
    for number, batch in enumerate(batches):
        _wait_for_all(device)
        began = time.perf_counter()
        # Counting takes time: only in a step that is not timed.
        saved = memory.Saved(model) if first and number == 0 else None
        with way.autocast(), saved.counting() if saved else contextlib.nullcontext():
            loss = model(*batch)
        if saved:
            cost.saved_bytes = saved.bytes
            cost.whole_parameters_bytes = memory.whole_parameters(model)
        _update(loss, optimizer, scaler)
        if cuda:
            torch.cuda.synchronize(device)
        if number > 0:
            cost.step_s.append(time.perf_counter() - began)
        if first:
            cost.losses.append(loss.item())
            cost.held = memory.held(model, optimizer)
        optimizer.zero_grad(set_to_none=True)
    if cuda:
        cost.peak_bytes = max(cost.peak_bytes or 0, torch.cuda.max_memory_allocated(device) - before)


def _update(loss, optimizer, scaler):
    if scaler is None:
        loss.backward()
        optimizer.step()
        return
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def _wait_for_all(device):
    """Waits for all ranks, so that a late rank does not add to the step time of others."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
