"""The task: predict the next character of the recipe `ddp`'s text from the few characters before it."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ddp", "text.txt")
SHORTEST_TEXT = 1000  # contexts are shorter than any useful text


class Text(Dataset):
    """Batches by number: batch `n` is the same in every process, so data need not be distributed and positions need not be stored."""

    def __init__(self, context, batch_size, seed):
        with open(TEXT, encoding="ascii") as file:
            text = file.read()
        self.alphabet = sorted(set(text))
        index = {character: i for i, character in enumerate(self.alphabet)}
        self._codes = torch.tensor([index[character] for character in text], dtype=torch.long)
        self._context, self._batch_size, self._seed = context, batch_size, seed

    def __getitem__(self, number):
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        starts = torch.randint(len(self._codes) - self._context, (self._batch_size, 1), generator=draw)
        windows = self._codes[starts + torch.arange(self._context + 1)]
        return windows[:, :-1], windows[:, -1]


class NextCharacter(nn.Module):
    """Embeds the characters before, two hidden layers; its forward returns the mean cross entropy, in nats per character."""

    def __init__(self, alphabet, context, width):
        super().__init__()
        self.embed = nn.Embedding(alphabet, 16)
        self.layers = nn.Sequential(nn.Linear(16 * context, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, alphabet))

    def forward(self, inputs, targets):
        return F.cross_entropy(self.layers(self.embed(inputs).flatten(1)), targets)


def make(arguments, device):
    """Returns (model, text), the same in every process."""
    torch.manual_seed(arguments.seed)
    text = Text(arguments.context, arguments.batch_size, arguments.seed)
    return NextCharacter(len(text.alphabet), arguments.context, arguments.width).to(device), text


def batches(text, numbers):
    """Returns an iterator over the batches with these numbers."""
    return iter(DataLoader(text, batch_size=None, sampler=numbers))
