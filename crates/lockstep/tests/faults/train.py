"""A training small enough to be repeated a hundred times, and the same to the last bit each time.

Runs under torchrun on Gloo: a small network under DistributedDataParallel, whose data depend on the step and the rank alone. It saves with torch.distributed.checkpoint into FOLDER/step-N, goes on from the checkpoint that LOCKSTEP_RESUME_FROM
names, and ends in order at SIGTERM. What it did lies beside it, one file a rank and attempt, so that a test need not believe
what it is told:

    DIR/limit              the last step that may be trained; ranks wait there until it is raised
    DIR/steps/A.R          one JSON line a step of rank R in attempt A: step, loss as Python prints it, wall clock
    DIR/fault              the wall clock when this script did what `--fail-how` says
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share two cores; must be set before torch is imported

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOOK_S = 0.02


class Network(nn.Module):
    """Two layers in one parameter: DistributedDataParallel lays several out anew behind the first step, a sum in another order has
    another last bit, and then a resumed training would not repeat an uninterrupted one exactly."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(33, 64) / 8)

    def forward(self, inputs):
        return torch.tanh(inputs @ self.weights[:32]) @ self.weights[32:].T


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for parameter in model.parameters():  # there from the beginning, so that it can be loaded
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    done = resume(model, optimizer)
    print(f"rank {rank} begins behind step {done}", flush=True)
    train(arguments, rank, done, model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--fail-at-step", type=int, default=0, help="never when 0")
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--fail-how", choices=["exception", "exit0"], default="exception")
    parser.add_argument("--fail-attempts", type=int, default=1, help="how many attempts fail")
    return parser.parse_args()


def state(model, optimizer, step):
    momentum = {name: optimizer.state[parameter]["momentum_buffer"] for name, parameter in model.named_parameters()}
    return {"model": model.state_dict(), "momentum": momentum, "step": torch.tensor(step)}


def resume(model, optimizer):
    folder = os.environ.get("LOCKSTEP_RESUME_FROM")
    if not folder:
        return 0
    saved = state(model, optimizer, 0)
    dcp.load(saved, checkpoint_id=folder)  # fills the tensors in place
    return int(saved["step"])


def train(arguments, rank, done, model, optimizer):
    attempt = int(os.environ["LOCKSTEP_ATTEMPT"])
    replica = DistributedDataParallel(model)
    with open(arguments.dir / "steps" / f"{attempt}.{rank}", "w", buffering=1) as notes:
        for step in range(done + 1, arguments.steps + 1):
            wait_for_leave(arguments.dir / "limit", step)
            if step == arguments.fail_at_step and rank == arguments.fail_rank and attempt <= arguments.fail_attempts:
                fail(arguments)
            loss = replica_loss(replica, step, rank)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            notes.write(json.dumps({"step": step, "loss": repr(loss.item()), "at": time.time()}) + "\n")
            print(f"step {step} loss {loss.item():.6g}", flush=True)
            if step % arguments.save_every == 0:
                dcp.save(state(model, optimizer, step), checkpoint_id=arguments.checkpoints / f"step-{step}")


def replica_loss(replica, step, rank):
    data = torch.Generator().manual_seed(1_000 * step + rank)
    inputs = torch.randn(16, 32, generator=data)
    return (replica(inputs) - inputs.sum(dim=1, keepdim=True).sin()).square().mean()


def wait_for_leave(limit, step):
    while step > int(limit.read_text() or 0):
        time.sleep(LOOK_S)


def fail(arguments):
    (arguments.dir / "fault").write_text(str(time.time()))
    if arguments.fail_how == "exit0":
        sys.exit(0)
    raise ValueError(f"sample 4711 of step {arguments.fail_at_step} cannot be read")


if __name__ == "__main__":
    main()
