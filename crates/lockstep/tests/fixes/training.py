"""The common part of the trainings of these tests: a linear model under DistributedDataParallel on Gloo, whose batches depend on the step and
the rank alone, so that a resumed training repeats the losses of an uninterrupted one.

The inputs of a rank are orthogonal with length 1, so gradient descent at rate R multiplies the distance to the best weights by |1 - 2 R|
in each step: it converges below a rate of 1 and diverges above. Computing is waiting: ranks share few cores, and a wait takes as long on a
busy machine.
"""

import argparse
import math
import os
import pathlib
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share few cores; must be set before torch is imported

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SAMPLES, WIDTH, NOISE, DRIFT = 32, 8, 0.5, 0.01
RATE = 0.1
STEPS = 1_000_000


def parser(step_s):
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=step_s, help="seconds of the forward pass")
    parser.add_argument("--num-workers", type=int, default=0)
    return parser


class Batches(Dataset):
    def __init__(self, load_s):
        rank = int(os.environ["RANK"])
        random = torch.Generator().manual_seed(rank)
        self.load_s = load_s
        self.inputs = torch.linalg.qr(torch.randn(SAMPLES, WIDTH, generator=random)).Q * math.sqrt(SAMPLES)
        self.targets = self.inputs.sum(dim=1, keepdim=True) + NOISE * torch.randn(SAMPLES, 1, generator=random)

    def __getitem__(self, step):
        time.sleep(self.load_s)
        return self.inputs, self.targets + DRIFT * math.sin(step) * self.inputs[:, :1]


class Model(nn.Module):
    def __init__(self, step_s):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1, bias=False)
        self.step_s = step_s

    def forward(self, inputs):
        time.sleep(self.step_s)
        return self.linear(inputs)


class Training:
    """Trains until it is stopped. Tests override the methods."""

    load_s = 0.0

    def __init__(self, arguments):
        self.arguments = arguments
        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.model = Model(self.step_s())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def step_s(self):
        return self.arguments.step_s

    def rate(self, step):
        """Returns the learning rate of a step."""
        return RATE

    def state(self, step):
        return {"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def save(self, step):
        torch.save(self.state(step), self.arguments.checkpoints / f"step-{step}.pt")

    def run(self):
        done = self.resume()
        replica = DistributedDataParallel(self.model)
        for step, (inputs, targets) in enumerate(self.loader(done), start=done + 1):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(step)
            loss = (replica(inputs) - targets).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.rank == 0 and step % self.arguments.save_every == 0:
                self.save(step)

    def loader(self, done):
        workers = self.arguments.num_workers
        context = "fork" if workers else None
        steps = range(done + 1, STEPS)
        return DataLoader(Batches(self.load_s), batch_size=None, sampler=steps, num_workers=workers, multiprocessing_context=context)

    def resume(self):
        path = os.environ.get("LOCKSTEP_RESUME_FROM")
        if not path:
            return 0
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return saved["step"]
