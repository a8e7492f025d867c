"""A healthy training whose steps are anything but even: what no alert may take for a fault.

    --evaluate-every N --evaluate-s LOW HIGH     rank 0 evaluates alone, for a time between these, while the others wait
    --save-every N                               rank 0 saves a checkpoint and stands still for it
    --uneven                                     batches of 4 to 16 samples, and steps that take as long as they are large
    --log-every-s S --log-s S                    one rank logs for some seconds, every so often
    --target                                     noise: a loss that stays where it is; line: one that converges to nearly nothing
    --epoch-s S                                  a pause after every epoch of 100 steps
"""

import argparse
import os
import pathlib
import random
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share two cores; must be set before torch is imported

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEP_S = 0.05


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, chance = dist.get_rank(), random.Random(arguments.seed)
    hidden = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)) if arguments.target == "noise" else nn.Linear(32, 1)
    model = DistributedDataParallel(hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    line = torch.randn(32, 1)
    logged = time.monotonic()
    for step in range(1, arguments.steps + 1):
        batch = chance.randint(4, 16) if arguments.uneven else 8
        inputs = torch.randn(batch, 32)
        targets = torch.randn(batch, 1) if arguments.target == "noise" else inputs @ line
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S * batch / 8)
        if arguments.save_every and step % arguments.save_every == 0 and rank == 0:
            save(arguments, model, step)
        if arguments.evaluate_every and step % arguments.evaluate_every == 0:
            pause = chance.uniform(*arguments.evaluate_s)
            if rank == 0:
                time.sleep(pause)
        if arguments.epoch_s and step % 100 == 0:
            time.sleep(arguments.epoch_s)
        if arguments.log_every_s and rank == dist.get_world_size() - 1 and time.monotonic() - logged > arguments.log_every_s:
            time.sleep(arguments.log_s)
            logged = time.monotonic()
    dist.destroy_process_group()


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--evaluate-s", type=float, nargs=2, default=(8.0, 60.0))
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--checkpoints", type=pathlib.Path)
    parser.add_argument("--uneven", action="store_true")
    parser.add_argument("--log-every-s", type=float, default=0)
    parser.add_argument("--log-s", type=float, default=2.0)
    parser.add_argument("--target", choices=["noise", "line"], default="noise")
    parser.add_argument("--epoch-s", type=float, default=0)
    return parser.parse_args()


def save(arguments, model, step):
    arguments.checkpoints.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "step": step}, arguments.checkpoints / f"step-{step}.pt")
    time.sleep(3)


if __name__ == "__main__":
    main()
