"""Ranks that visit one place after another, and stay there until the test has observed them."""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK = os.environ["RANK"]


def stay(place):
    """Until the test lets this rank go on."""
    until = time.monotonic() + 300
    while not pathlib.Path(f"{place}-{RANK}").exists() and time.monotonic() < until:
        time.sleep(0.01)


class Samples(Dataset):
    """The first sample is late."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 0:
            stay("data")
        return torch.ones(4)


class Waits(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        stay("backward")
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, batch):
        return Waits.apply(self.layer(batch))


stay("imported")
dist.init_process_group("gloo")
pair = dist.new_group([0, 1], group_desc="pair")
stay("made")
if "fsdp2" in sys.argv:
    from torch.distributed.fsdp import fully_shard

    fully_shard(Model())
    stay("wrapped")
    dist.destroy_process_group()
    sys.exit()
model = DistributedDataParallel(Model())
stay("wrapped")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Samples(), batch_size=4, num_workers=1):
    loss = model(batch).sum()
    stay("forward")
    loss.backward()
    optimizer.step()
stay("host")
if RANK == "1":
    stay("late")
dist.all_reduce(torch.ones(1), group=pair)
stay("saved")
torch.save(model.state_dict(), f"model-{RANK}.pt")
dist.destroy_process_group()
