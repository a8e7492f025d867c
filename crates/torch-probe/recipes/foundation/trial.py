"""Two ways to train beside each other, for a few steps before training begins: what each costs and what each learns.

Each way is built anew in each round, because two of them alive at once would stand in each other's peak; the rounds take turns, so that a machine
that is busy for a while is busy for both. All begin with the same weights, see the same batches and drop the same.
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
    """`build` gives a model and its optimizer, on the trial's device. `autocast` is entered for forward passes; `scaler` makes a GradScaler."""

    name: str
    build: object
    autocast: object = contextlib.nullcontext
    scaler: object = None


@dataclass
class Costs:
    """Of one rank. Bytes; None for what was not counted."""

    losses: list = field(default_factory=list)
    step_s: list = field(default_factory=list)
    held: memory.Held = None
    saved_bytes: int = 0
    whole_parameters_bytes: int = 0
    peak_bytes: int = None

    @property
    def fastest_step_s(self):
        """What else runs on the machine only ever adds: the fastest of a few steps says most about the way itself."""
        return min(self.step_s)

    @property
    def memory_bytes(self):
        """The allocator's peak where there is one, else what the forward pass saved."""
        return self.saved_bytes if self.peak_bytes is None else self.peak_bytes

    def in_words(self):
        peak = "" if self.peak_bytes is None else f", allocator peak {self.peak_bytes} bytes"
        time = f", {self.fastest_step_s * 1000:.1f} ms a step" if self.step_s else ""
        return f"saved for backward {self.saved_bytes} bytes{peak}{time}"


def compare(ways, batches, device, rounds=1):
    """The costs of each way, in their order. Each round takes a step with each batch; the first of them is not timed. All ranks call it together."""
    costs = [Costs() for _ in ways]
    with unwatched():
        for number in range(rounds):
            for way, cost in zip(ways, costs):
                _run(way, cost, batches, device, first=number == 0)
    return costs


def _run(way, cost, batches, device, first):
    cuda = device.type == "cuda"
    gc.collect()  # wrapped models hold themselves in circles: the way before this one must be gone
    before = torch.cuda.memory_allocated(device) if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    model, optimizer = way.build()
    scaler = way.scaler() if way.scaler else None
    torch.manual_seed(dist.get_rank())
    for number, batch in enumerate(batches):
        _wait_for_all(device)
        began = time.perf_counter()
        # Counting takes time of its own: only in a step that is not timed.
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
    """A rank that comes late would be the others' step time."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
