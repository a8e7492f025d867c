"""A plain training loop: a small transformer learns to continue a text, with DistributedDataParallel.

    torchrun --nproc-per-node=2 examples/train_loop.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS = int(os.environ.get("STEPS", 60))
CONTEXT, WIDTH, LAYERS, HEADS, BATCH = 48, 64, 8, 4, 8
TEXT = "the quick brown fox jumps over the lazy dog; a stitch in time saves nine; all that glitters is not gold. " * 40
VOCABULARY = sorted(set(TEXT))


class Windows(Dataset):
    def __init__(self, text):
        index = {character: i for i, character in enumerate(VOCABULARY)}
        self.ids = torch.tensor([index[character] for character in text])

    def __len__(self):
        return len(self.ids) - CONTEXT - 1

    def __getitem__(self, i):
        window = self.ids[i : i + CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(VOCABULARY), WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(VOCABULARY))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(1)
    model = DistributedDataParallel(Transformer().to(device), device_ids=[device.index] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = Windows(TEXT)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)

    step = 0
    while step < STEPS:
        sampler.set_epoch(step)
        for inputs, targets in loader:
            logits = model(inputs.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step == STEPS:
                break
    dist.barrier()  # waits until Gloo's threads have released all tensors; no thread may hold one when Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
