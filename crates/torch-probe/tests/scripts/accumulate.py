"""A plain loop with gradient accumulation: four micro-batches to a step, clipped, on data of its own making."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(6):
    optimizer.zero_grad()
    for micro in range(4):
        x = torch.randn(5, 8, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if micro == 3:
            (loss / 4).backward()
        else:
            with model.no_sync():
                (loss / 4).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    sys.stdout.write(f"rank={dist.get_rank()} step={step + 1} norm={norm.item():.9g} loss={loss.item():.9g}\n")
    sys.stdout.flush()
dist.destroy_process_group()
