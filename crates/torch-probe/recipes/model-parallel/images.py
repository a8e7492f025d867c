"""Generated images of four kinds, with noise: horizontal lines, vertical lines, a chess board, a disc. They have no copyright, and are the
same on every machine."""

import torch
from torch.utils.data import Dataset

SIZE = 16
CLASSES = 4
NOISE = 0.7


class Batches(Dataset):
    """Batch `n` as (images, labels), the same in every process: an interrupted run continues with its next batch."""

    def __init__(self, batch_size, seed):
        self.batch_size = batch_size
        self.seed = seed

    def __getitem__(self, number):
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        labels = torch.randint(CLASSES, (self.batch_size,), generator=draw)
        pictures = torch.stack([picture(int(label), draw) for label in labels])
        return pictures + NOISE * torch.randn(pictures.shape, generator=draw), labels


def picture(label, draw):
    """One image (1 × SIZE × SIZE), its pattern shifted at random."""
    down, across, period = (int(value) for value in torch.randint(2, 6, (3,), generator=draw))
    rows, columns = torch.meshgrid(torch.arange(SIZE) + down, torch.arange(SIZE) + across, indexing="ij")
    striped, crossed = rows % period < period / 2, columns % period < period / 2
    disc = (rows - down - SIZE / 2) ** 2 + (columns - across - SIZE / 2) ** 2 < (period + 2) ** 2
    return (striped, crossed, striped ^ crossed, disc)[label].float().unsqueeze(0)
