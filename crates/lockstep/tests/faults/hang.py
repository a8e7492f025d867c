"""Four ranks under DistributedDataParallel on Gloo, one of which stops taking part at a step.

    spinning            it computes for ever, between two steps
    desynchronised      it waits for a message that no rank sends, while the others are in their next all-reduce
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share two cores; must be set before torch is imported

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["spinning", "desynchronised"], required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--at-step", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = DataLoader(TensorDataset(torch.randn(1024, 64), torch.randn(1024, 1)), batch_size=16)
    step = 0
    while True:
        for inputs, targets in batches:
            step += 1
            if step == arguments.at_step and dist.get_rank() == arguments.rank:
                print("does not take part from here on", flush=True)
                hang(arguments.how)
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            time.sleep(0.05)


def hang(how):
    if how == "desynchronised":
        dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size())
    while True:
        pass


if __name__ == "__main__":
    main()
