"""The network: a stem, identical residual blocks, a head. And how it is split into stages.

The layers have their names of the whole network on any stage, so a checkpoint does not depend on the split. Group normalisation, not batch
normalisation, whose statistics would depend on how a batch is split into micro-batches.
"""

import torch
from torch import nn

GROUPS = 4  # of channels, normalised together


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.path = nn.Sequential(
            nn.GroupNorm(GROUPS, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return x + self.path(x)


class Head(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.classify = nn.Linear(width, classes)

    def forward(self, x):
        return self.classify(x.mean((2, 3)))


def layers(blocks, width, classes, seed):
    """(name, layer) of the whole network, with the same weights in every process."""
    torch.manual_seed(seed)
    stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
    return [("stem", stem), *((f"block{n}", Block(width)) for n in range(blocks)), ("head", Head(width, classes))]


def span(blocks, stage, stages):
    """Returns the blocks of a stage, distributed as evenly as possible."""
    return range(stage * blocks // stages, (stage + 1) * blocks // stages)


def cut(whole, stage, stages):
    """Returns the stage's layers: its blocks; for the first stage also the stem, for the last one also the head."""
    own = span(len(whole) - 2, stage, stages)
    chosen = whole[1 + own.start : 1 + own.stop]
    chosen = whole[:1] + chosen if stage == 0 else chosen
    return chosen + whole[-1:] if stage == stages - 1 else chosen


def sequence(named):
    """Returns one module that runs them in sequence."""
    module = nn.Sequential()
    for name, layer in named:
        module.add_module(name, layer)
    return module
