"""The recipe `activation-checkpointing` on a device with little memory, on CPUs.

This is a stand-in for a GPU: a CPU has no allocator with a limit. The script counts the bytes that a forward pass keeps for the backward
pass, as the recipe itself does, and raises torch's own OutOfMemoryError when they exceed a limit: twice what the first batch of the run
keeps without checkpointing. From step 13 on, batches are three times as large. With the recipe's knob `--granularity block`, they fit.

    MEMORY_DIR/limit-RANK     the limit in bytes
"""

import os
import pathlib
import sys

RECIPES = pathlib.Path(__file__).resolve().parents[3] / "torch-probe" / "recipes"
sys.path.insert(0, str(RECIPES / "activation-checkpointing"))

import main as recipe  # adds the recipes' folder to sys.path, and sets OMP_NUM_THREADS before it imports torch

import torch
from foundation import memory

LARGE_FROM, LARGER, LIMIT = 13, 3, 2


class Limited(recipe.Autocasting):
    def forward(self, inputs, targets):
        if self.training.step + 1 >= LARGE_FROM:
            inputs, targets = inputs.repeat(LARGER, 1), targets.repeat(LARGER, 1)
        saved = memory.Saved(self.training.model)
        with saved.counting():
            loss = super().forward(inputs, targets)
        limit = limit_bytes(saved.bytes)
        if saved.bytes > limit:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {mebibytes(saved.bytes - limit)}. The stand-in for a GPU has a total capacity of "
                f"{mebibytes(limit)} for activations."
            )
        return loss


def limit_bytes(first):
    file = pathlib.Path(os.environ["MEMORY_DIR"]) / f"limit-{os.environ['RANK']}"
    if not file.exists():
        file.write_text(str(LIMIT * first))
    return int(file.read_text())


def mebibytes(count):
    return f"{count / (1 << 20):.2f} MiB"


recipe.Autocasting = Limited
recipe.main()
