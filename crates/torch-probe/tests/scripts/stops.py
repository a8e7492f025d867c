"""Trains forever. `--handler`: sets a flag on SIGTERM and saves at the end of the iteration, like scripts that support preemption;
`--catch`: catches the probe's StopTraining and saves; otherwise it does not handle stops."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

asked = []
if "--handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train():
    for step in range(1, 100_000):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02 * (1 + dist.get_rank()))  # ranks do not receive the order at the same time
        if asked:
            return save(step)


def save(step):
    torch.save(model.module.state_dict(), f"saved-{dist.get_rank()}.pt")
    print(f"rank {dist.get_rank()} saved at step {step}", flush=True)


try:
    train()
    dist.destroy_process_group()
except SystemExit as stop:
    if "--catch" not in sys.argv:
        raise
    save(stop.step)
finally:
    print(f"rank {os.environ['RANK']} cleaned up", flush=True)
