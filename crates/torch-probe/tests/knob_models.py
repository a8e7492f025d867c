"""Small models, trained for a few steps as each test requires; a training returns its exact losses."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, scale=1.0):
        return x + scale * self.down(self.dropout(F.gelu(self.up(self.norm(x)))))


class Deep(nn.Module):
    """Blocks in a list over which the model's own loop iterates."""

    def __init__(self, count=6, width=16, block=Block):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.blocks = nn.ModuleList([block(width) for _ in range(count)])
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.last(x)


class Normed(nn.Module):
    """A block with running statistics."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x, scale=1.0):
        return x + scale * F.relu(self.norm(self.linear(x)))


def batch(step, size=8):
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


def train(model, steps=4, optimizer=None, forward=None, after=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        loss = F.mse_loss((forward or model)(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if after is not None:
            after(model, optimizer)
    return losses
