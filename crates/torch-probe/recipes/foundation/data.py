"""Divides the text among the ranks.

Not every rank gets its own data: the ranks that compute one layer together need the same batch. `Share` is the number of this rank's share
of the data, and the number of shares.
"""

import itertools
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from resume.text import ResumableSampler, Text

HELD_OUT_BATCHES_MAX = 4  # per share: validation takes about as long as a few steps


@dataclass(frozen=True)
class Share:
    index: int
    of: int


class Data:
    def __init__(self, arguments, share, device):
        self.share = share
        self.device = device
        self.batch_size = arguments.batch_size
        self.text, self.held_out = Text(arguments.context, "training"), Text(arguments.context, "validation")
        self.sampler = ResumableSampler(len(self.text), arguments.batch_size, share.index, share.of, arguments.seed)
        if len(self.text) < self.sampler.step_samples or not self._held_out_batches():
            raise SystemExit("the text is too short for this batch size, context and number of ranks: lower one of them")
        # A separate generator: an iterator that is created again after a resume must not take a number from the model's random numbers.
        draw = torch.Generator().manual_seed(arguments.seed)
        self.loader = DataLoader(self.text, self.batch_size, sampler=self.sampler, num_workers=arguments.num_workers, generator=draw)

    @property
    def alphabet(self):
        return len(self.text.alphabet)

    def to_device(self, batch):
        inputs, targets = batch
        return inputs.to(self.device), targets.to(self.device)

    def first(self, count):
        """Returns the first batches of training, for a trial: call it before training starts. It does not use them up; they repeat at the
        end of the text."""
        order = itertools.cycle(list(self.sampler))
        return [self._batch(self.text, list(itertools.islice(order, self.batch_size))) for _ in range(count)]

    def validation(self):
        """Returns the validation batches of this share: the same number on every rank, because the forward pass of a sharded model is a
        collective."""
        for number in range(self._held_out_batches()):
            first = number * self.batch_size * self.share.of + self.share.index
            yield self._batch(self.held_out, range(first, first + self.batch_size * self.share.of, self.share.of))

    def _held_out_batches(self):
        return min(HELD_OUT_BATCHES_MAX, len(self.held_out) // (self.batch_size * self.share.of))

    def _batch(self, text, items):
        return self.to_device(tuple(torch.stack(part) for part in zip(*(text[item] for item in items))))
