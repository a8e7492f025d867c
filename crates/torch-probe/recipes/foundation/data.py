"""The text, dealt out to the ranks.

Not every rank gets data of its own: the ranks that compute one layer together need the same batch. `Share` says which share of the data this
rank trains on, of how many.
"""

import itertools
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from resume.text import ResumableSampler, Text

HELD_OUT_BATCHES_MAX = 4  # of each share: validation takes about as long as a few steps


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
        # A generator of its own: an iterator that is made anew after a resume must not take a number out of the model's stream.
        draw = torch.Generator().manual_seed(arguments.seed)
        self.loader = DataLoader(self.text, self.batch_size, sampler=self.sampler, num_workers=arguments.num_workers, generator=draw)

    @property
    def alphabet(self):
        return len(self.text.alphabet)

    def to_device(self, batch):
        inputs, targets = batch
        return inputs.to(self.device), targets.to(self.device)

    def first(self, count):
        """The first batches of training, for a trial: call it before training begins. They are not used up by it, and come anew where the text ends."""
        order = itertools.cycle(list(self.sampler))
        return [self._batch(self.text, list(itertools.islice(order, self.batch_size))) for _ in range(count)]

    def validation(self):
        """Held-out batches of this share: as many on every rank, because a sharded model's forward is a collective."""
        for number in range(self._held_out_batches()):
            first = number * self.batch_size * self.share.of + self.share.index
            yield self._batch(self.held_out, range(first, first + self.batch_size * self.share.of, self.share.of))

    def _held_out_batches(self):
        return min(HELD_OUT_BATCHES_MAX, len(self.held_out) // (self.batch_size * self.share.of))

    def _batch(self, text, items):
        return self.to_device(tuple(torch.stack(part) for part in zip(*(text[item] for item in items))))
