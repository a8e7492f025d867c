"""The recipe's data: windows of the text of the recipe `ddp`, and an order that can be resumed at any position."""

import os

import torch
from torch.utils.data import Dataset, Sampler

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ddp", "text.txt")
HELD_OUT = 0.1  # the end of the text, for validation


class Text(Dataset):
    """Overlapping windows, as (characters, the next character of each). `part`: "training" or "validation"."""

    STRIDE = 4

    def __init__(self, context, part):
        with open(TEXT, encoding="ascii") as file:
            text = file.read()
        self.alphabet = sorted(set(text))
        index = {character: i for i, character in enumerate(self.alphabet)}
        edge = int(len(text) * (1 - HELD_OUT))
        chosen = text[:edge] if part == "training" else text[edge:]
        self.codes = torch.tensor([index[character] for character in chosen], dtype=torch.long)
        self.context = context

    def __len__(self):
        return max(0, (len(self.codes) - self.context - 1) // self.STRIDE)

    def __getitem__(self, item):
        start = item * self.STRIDE
        window = self.codes[start : start + self.context + 1]
        return window[:-1], window[1:]


class ResumableSampler(Sampler):
    """Divides a shuffled epoch among the ranks, from any position.

    The position is (epoch, samples of it on which all ranks together have trained). It moves when a batch has been trained on, not when it
    was fetched, because a DataLoader's workers fetch ahead. It is the same on every rank and is valid for another number of ranks.
    """

    def __init__(self, size, batch_size, rank, world_size, seed):
        self.size = size
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0
        self.consumed = 0

    @property
    def step_samples(self):
        return self.batch_size * self.world_size

    def __len__(self):
        """Returns the remaining samples of this rank in the epoch, without the last ones that do not fill a step."""
        return (self.size - self.consumed) // self.step_samples * self.batch_size

    def __iter__(self):
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        first = self.consumed + self.rank
        return iter(order[first :: self.world_size][: len(self)])

    def trained_on_a_batch(self):
        self.consumed += self.step_samples

    def next_epoch(self):
        self.epoch, self.consumed = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state):
        self.epoch, self.consumed = state["epoch"], state["consumed"]
