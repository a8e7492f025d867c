"""A small character-level transformer with dropout that can be split in any way.

Queries, keys and values are separate layers, and the number of heads follows from their outputs: under tensor parallelism a rank's share of
them is a share of the heads. The blocks are a list: the unit of sharding and of activation checkpointing.
"""

import torch
import torch.nn.functional as F
from torch import nn

HEAD_WIDTH = 16


class CharacterModel(nn.Module):
    """Decoder-only, with learned positions; its forward returns the mean cross entropy, in nats per character."""

    def __init__(self, alphabet, width, layers, context, dropout):
        super().__init__()
        self.embed = nn.Embedding(alphabet, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet)

    def forward(self, inputs, targets):
        x = self.through_blocks(self.dropout(self.embed(inputs) + self.position))
        # In float32, whatever precision the rest uses: a loss in bfloat16 has three digits.
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def through_blocks(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.dropout = nn.Dropout(dropout)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = (heads(layer(x)) for layer in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.mix(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def heads(x):
    """Reshapes (batch, length, heads x HEAD_WIDTH) to (batch, heads, length, HEAD_WIDTH)."""
    return x.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)
