"""Four ranks under DistributedDataParallel on Gloo that train evenly, until something degrades.

    slow-forward     the forward pass of one rank takes four times as long
    large-batch      one rank takes batches that are four times as large
    slow-data        every rank's data loader gives batches slower than the model takes them
    slow-step        every rank computes three times as long
    full-disk        from here on checkpoints go where no room is left
    learning-rate    the learning rate is 10,000 times as high
    nan              one rank's targets are NaN, once and for good

Computing is waiting here: ranks share two cores, and a wait takes as long on a busy machine. The line `degraded at` has the wall clock.
"""

import argparse
import math
import os
import pathlib
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share two cores; must be set before torch is imported

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

BATCH = 8
FORWARD_S, BACKWARD_S = 0.004, 0.004  # of a sample
SAVE_EVERY = 50


class Slow(torch.autograd.Function):
    """Passes on what it gets, and takes its time in both directions."""

    @staticmethod
    def forward(context, inputs, seconds):
        context.seconds = seconds
        time.sleep(seconds[0] * len(inputs))
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds[1] * len(gradient))
        return gradient, None


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
        self.seconds = (FORWARD_S, BACKWARD_S)

    def forward(self, inputs):
        # Behind the first layer: where no gradient goes there is no backward pass.
        return self.layers[2](Slow.apply(self.layers[1](self.layers[0](inputs)), self.seconds))


class Samples(IterableDataset):
    def __init__(self):
        self.batch, self.seconds, self.scale = BATCH, 0.0, 1.0

    def __iter__(self):
        while True:
            time.sleep(self.seconds)
            inputs = torch.randn(self.batch, 32)
            yield inputs, self.scale * inputs.sum(dim=1, keepdim=True).sin() + 0.1 * torch.randn(self.batch, 1)


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.rank)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network, samples = Network(), Samples()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoints = arguments.checkpoints
    for step, (inputs, targets) in enumerate(DataLoader(samples, batch_size=None), start=1):
        if step == arguments.at_step:
            degrade(arguments, rank, network, samples, optimizer)
            checkpoints = arguments.full_disk if arguments.how == "full-disk" else checkpoints
            if rank == 0:
                print(f"degraded at {time.time():.3f}", flush=True)
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == 0 and rank == 0:
            save(model, checkpoints / f"step-{step}.pt")


def degrade(arguments, rank, network, samples, optimizer):
    chosen = rank == arguments.rank
    match arguments.how:
        case "slow-forward" if chosen:
            network.seconds = (4 * FORWARD_S, BACKWARD_S)
        case "large-batch" if chosen:
            samples.batch = 4 * BATCH
        case "slow-data":
            samples.seconds = BATCH * (FORWARD_S + BACKWARD_S)
        case "slow-step":
            network.seconds = (3 * FORWARD_S, 3 * BACKWARD_S)
        case "learning-rate":
            for group in optimizer.param_groups:
                group["lr"] *= 10_000
        case "nan" if chosen:
            samples.scale = math.nan


def save(model, path):
    try:
        torch.save({"model": model.state_dict()}, path)
    except (OSError, RuntimeError) as error:
        print(f"not saved: {error}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", required=True)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at-step", type=int, required=True)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--full-disk", type=pathlib.Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
