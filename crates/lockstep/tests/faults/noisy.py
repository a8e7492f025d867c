"""A healthy training whose steps are anything but even: what no alert may take for a fault.

    --evaluate-every N --evaluate-s LOW HIGH     rank 0 evaluates alone, for a time between these, while the others wait
    --save-every N                               rank 0 saves a checkpoint and stands still for it
    --uneven                                     batches of 4 to 16 samples, and steps that take as long as they are large
    --log-every-s S --log-s S                    one rank logs for some seconds, every so often
    --target                                     noise: a loss that stays where it is; line: one that converges to nearly nothing; negative
    --workers N                                  a DataLoader whose N worker processes start anew with each epoch of 100 steps
    --overflow-every N                           a gradient that overflows every N steps, which the gradient scaler skips by design
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
from torch.utils.data import DataLoader, TensorDataset

STEP_S = 0.05


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, chance = dist.get_rank(), random.Random(arguments.seed)
    hidden = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)) if arguments.target != "line" else nn.Linear(32, 1)
    model = DistributedDataParallel(hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    line = torch.randn(32, 1)
    logged = time.monotonic()
    scaler = torch.amp.GradScaler("cpu", enabled=bool(arguments.overflow_every))
    overflows = [False]
    if arguments.overflow_every:
        hidden[0].weight.register_hook(lambda gradient: gradient * float("inf") if overflows[0] else gradient)
    for step, inputs in enumerate(batches(arguments, chance), start=1):
        batch, overflows[0] = len(inputs), bool(arguments.overflow_every) and step % arguments.overflow_every == 0
        targets = inputs @ line if arguments.target == "line" else torch.randn(batch, 1)
        loss = (model(inputs) - targets).square().mean() - (5 if arguments.target == "negative" else 0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
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


def batches(arguments, chance):
    if arguments.workers:
        samples = TensorDataset(torch.randn(800, 32))
        for _ in range(arguments.steps // 100):
            for (inputs,) in DataLoader(samples, batch_size=8, num_workers=arguments.workers):
                yield inputs
    else:
        for _ in range(arguments.steps):
            yield torch.randn(chance.randint(4, 16) if arguments.uneven else 8, 32)


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
    parser.add_argument("--target", choices=["noise", "line", "negative"], default="noise")
    parser.add_argument("--epoch-s", type=float, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--overflow-every", type=int, default=0)
    return parser.parse_args()


def save(arguments, model, step):
    arguments.checkpoints.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "step": step}, arguments.checkpoints / f"step-{step}.pt")
    time.sleep(3)


if __name__ == "__main__":
    main()
