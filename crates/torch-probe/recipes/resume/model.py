"""A small character-level transformer with dropout, so that training depends on each rank's random numbers."""

import torch
import torch.nn.functional as F
from torch import nn


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
        x = self.dropout(self.embed(inputs) + self.position)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    def freeze(self, blocks):
        """Freezes the first blocks, and the embedding below them. Returns the names of the frozen tensors."""
        if blocks > 0:
            for part in (self.embed, *self.blocks[:blocks]):
                part.requires_grad_(False)
            self.position.requires_grad_(False)
        return [name for name, parameter in self.named_parameters() if not parameter.requires_grad]


class Block(nn.Module):
    HEAD_WIDTH = 32

    def __init__(self, width, dropout):
        super().__init__()
        self.heads = max(1, width // self.HEAD_WIDTH)
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.dropout(self.mix(self.attend(self.norm_attention(x))))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))

    def attend(self, x):
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(batch, length, width)
