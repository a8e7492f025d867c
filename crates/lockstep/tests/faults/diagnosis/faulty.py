"""A training on Gloo in which something goes wrong, in a way and at a step that the arguments name. The package `faults` describes each way.

Computing is waiting: ranks share few cores, and a wait takes as long on a busy machine. With --busy SHARE that part of a step is spent
computing.

    DIR/fault     the wall clock of the fault
    DIR/rank-N    the checkpoints of rank N
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import random
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share few cores; must be set before torch is imported

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # a launcher may start this file from elsewhere

import faults

BATCH, WIDTH, NOISE = 20, 64, 0.5
SHARES = {"data": 0.1, "forward": 0.35, "backward": 0.4, "optimizer": 0.05, "host": 0.1}  # of a step
REPORT_EVERY, SAVE_EVERY = 10, 100


class Pace:
    """How long each part of a step takes on this rank, and in which part it stalls now and then."""

    def __init__(self, arguments):
        self.seconds = {part: share * arguments.step_s for part, share in SHARES.items()}
        self.busy = arguments.busy
        self.stalls_in, self.stall_s, self.period_s, self.stalled = None, arguments.stall_s, arguments.period_s, 0.0
        self.chance = random.Random(os.environ["RANK"])

    def take(self, part, share=1.0):
        seconds = self.seconds[part] * share * self.chance.uniform(0.95, 1.05)
        busy_until = time.thread_time() + seconds * self.busy
        while time.thread_time() < busy_until:
            pass
        time.sleep(seconds * (1 - self.busy))
        if part == self.stalls_in and time.monotonic() > self.stalled + self.period_s:
            time.sleep(self.stall_s)
            self.stalled = time.monotonic()


class Paced(torch.autograd.Function):
    """Passes on what it gets, and takes its time in both directions, in proportion to the batch."""

    @staticmethod
    def forward(context, inputs, network):
        context.network, context.share = network, len(inputs) / BATCH
        network.pace.take("forward", context.share)
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        context.network.pace.take("backward", context.share)
        return gradient * context.network.gradient_factor, None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        return inputs + torch.tanh(self.linear(inputs))


class Network(nn.Module):
    def __init__(self, pace):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.last.weight)
        self.pace, self.gradient_factor = pace, 1.0

    def forward(self, inputs):
        for number, block in enumerate(self.blocks):
            inputs = block(inputs)
            if number == 1:  # behind parameters: where no gradient goes there is no backward pass
                inputs = Paced.apply(inputs, self)
        return self.last(inputs)


class Optimizer(torch.optim.SGD):
    def __init__(self, parameters, pace):
        super().__init__(parameters, lr=0.01)
        self.pace = pace

    def step(self, closure=None):
        self.pace.take("optimizer")
        return super().step(closure)


class Samples(IterableDataset):
    """Samples of this rank, whose labels can be learned up to the noise."""

    def __init__(self, pace, rank):
        self.pace, self.batch, self.ended = pace, BATCH, False
        self.generator = torch.Generator().manual_seed(1_000 + rank)
        self.extra_s = multiprocessing.RawValue("d", 0.0)  # shared with worker processes
        self.spoil = lambda inputs, targets: (inputs, targets)

    def __iter__(self):
        while not self.ended:
            self.pace.take("data")
            time.sleep(self.extra_s.value)
            inputs = torch.randn(self.batch, WIDTH, generator=self.generator)
            noise = NOISE * torch.randn(self.batch, 1, generator=self.generator)
            yield self.spoil(inputs, (inputs.sum(dim=1, keepdim=True) / WIDTH**0.5).sin() + noise)


class Training:
    def __init__(self, arguments):
        self.arguments, self.how, self.step = arguments, arguments.how, 0
        self.rank, self.chosen = int(os.environ["RANK"]), int(os.environ["RANK"]) in arguments.ranks
        self.extra_s, self.sync_delay_s = arguments.magnitude * arguments.step_s, 0.0
        self.folder, self.also_saved = arguments.dir / f"rank-{self.rank}", None
        self.folder.mkdir(exist_ok=True)
        self.pace = Pace(arguments)
        if arguments.busy:
            os.sched_setaffinity(0, {arguments.core} if self.chosen else os.sched_getaffinity(0) - {arguments.core})
        self.hang_before("before-rendezvous")
        dist.init_process_group("gloo")
        self.groups = [dist.new_group() for _ in range(2)]
        self.hang_before("before-model")
        self.network = Network(self.pace)
        self.model = self.wrapped(self.network)
        self.optimizer = Optimizer(self.model.parameters(), self.pace)
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.how == "lost-scale")
        self.samples = Samples(self.pace, self.rank)

    def wrapped(self, network):
        if self.arguments.strategy == "ddp":
            model = DistributedDataParallel(network)
            if self.how == "slow-sync":
                model.register_comm_hook(self, faults.delayed_all_reduce)
            return model
        ranks = dist.get_world_size()
        shape, names = ((ranks // 2, 2), ("replicate", "shard")) if self.arguments.strategy == "hsdp" else ((ranks,), None)
        mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
        for block in network.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(network, mesh=mesh)

    def run(self):
        traced = lambda model: contextlib.nullcontext()
        if self.arguments.traceml:
            import traceml_ai as traceml
            traceml.init(mode="auto")
            traced = traceml.trace_step
        if self.arguments.at_step == 0 and self.chosen:
            self.strike()
        for step, (inputs, targets) in enumerate(self.loader(), start=1):
            with traced(self.model):
                loss = (self.model(inputs) - targets).square().mean()
                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.after(step, loss.detach())
            if step == self.arguments.steps:
                break
        dist.barrier()
        dist.destroy_process_group()

    def loader(self):
        workers = {"num_workers": 1, "multiprocessing_context": "fork"} if self.how == "few-workers" else {}
        return DataLoader(self.samples, batch_size=None, **workers)

    def after(self, step, loss):
        """What a script does between two steps. Here the fault comes."""
        self.step = step
        struck = step == self.arguments.at_step
        strikes = struck and self.chosen
        if strikes:
            self.strike()
        self.pace.take("host")
        if struck or step % REPORT_EVERY == 0:
            self.report(loss, strikes)
        if struck or step % SAVE_EVERY == 0:
            self.save()

    def report(self, loss, strikes):
        """Sums up the loss over all ranks, and their number over another group."""
        first, second = self.groups
        if strikes and self.how == "other-order":
            first, second = second, first
        if strikes and self.how == "skipped-collective":
            return
        if strikes and self.how == "other-operation":
            dist.all_gather([torch.zeros(()) for _ in range(dist.get_world_size())], loss, group=first)
        dist.all_reduce(loss, group=first)
        dist.all_reduce(torch.ones(()), group=second)

    def checkpoint(self):
        return self.folder / f"step-{self.step}.pt"

    def save(self):
        state = {"parameters": self.local_parameters(), "optimizer": self.optimizer.state_dict(), "more": self.also_saved}
        with contextlib.suppress(OSError, RuntimeError):  # goes on without the checkpoint
            torch.save(state, self.checkpoint())

    def local_parameters(self):
        return [getattr(parameter, "_local_tensor", parameter).detach() for parameter in self.model.parameters()]

    def hang_before(self, how):
        """Sleeps for ever. The fault begins when all others wait: ranks need different times to import PyTorch."""
        if self.how != how:
            return
        (self.arguments.dir / f"arrived.{self.rank}").touch()
        if self.chosen:
            while len(list(self.arguments.dir.glob("arrived.*"))) < int(os.environ["WORLD_SIZE"]):
                time.sleep(0.05)
            self.note()
            time.sleep(faults.FOREVER_S)

    def note(self):
        new = self.arguments.dir / f"fault.{self.rank}"
        new.write_text(f"{time.time():.3f}")
        new.rename(self.arguments.dir / "fault")

    def strike(self):
        self.note()
        faults.STRIKES[self.how](self)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", required=True)
    parser.add_argument("--strategy", choices=["ddp", "fsdp2", "hsdp"], required=True)
    parser.add_argument("--ranks", type=int, nargs="+", required=True, help="those that go wrong")
    parser.add_argument("--at-step", type=int, required=True, help="the step after which they go wrong; before the first one when 0")
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--magnitude", type=float, default=0.0, help="of the fault; EXTRA is so many steps")
    parser.add_argument("--stall-s", type=float, default=0.0)
    parser.add_argument("--period-s", type=float, default=20.0)
    parser.add_argument("--busy", type=float, default=0.0, help="the part of a step that is spent computing")
    parser.add_argument("--core", type=int, default=0, help="with --busy: the core of the rank that goes wrong; the others leave it alone")
    parser.add_argument("--steps", type=int, default=0, help="without end when 0")
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--traceml", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Training(parse_arguments()).run()
