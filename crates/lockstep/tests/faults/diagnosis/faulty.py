"""A training on Gloo in which one rank or two go wrong, in a way and at a step that the arguments name.

Hangs:
    stopped, busy-neighbour   nothing: what the rank suffers comes from outside; it only notes that the step has come
    spin                      computes for ever between two steps
    spin-gil                  the same inside one call of C code that holds the interpreter lock
    unsent-message            waits for a message that no rank sends
    skipped-collective        skips one all_reduce of a group and goes on to the next step
    other-order               enters the collectives of two groups in the other order
    other-operation           gathers where all others reduce
    early-end                 has no more data: goes to the last barrier while all others go on
    data-sleep                its data loader sleeps for ever
    fifo                      reads from a pipe into which no one writes
    before-rendezvous         sleeps before init_process_group
    before-model              sleeps before the model is wrapped
    save                      saves its checkpoint to a file that never opens
    main-ended                its main thread ends with an error; another thread keeps the process alive

Stragglers, which take EXTRA seconds longer in each step:
    slow-forward, slow-backward, slow-optimizer, slow-data, slow-host
    slow-everywhere           a fifth of it in each of these
    large-batch               a batch that takes that much longer
    intermittent              EXTRA seconds once per PERIOD seconds, in the forward pass

Computing is waiting: ranks share few cores, and a wait takes as long on a busy machine. With --busy SHARE that part of a step is spent
computing. DIR/fault gets the wall clock of the fault.
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import threading
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share few cores; must be set before torch is imported

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

BATCH, WIDTH = 20, 64
SHARES = {"data": 0.1, "forward": 0.35, "backward": 0.4, "optimizer": 0.05, "host": 0.1}  # of a step
FOREVER_S = 1e6
REPORT_EVERY, SAVE_EVERY = 10, 100


class Pace:
    """How long each part of a step takes on this rank."""

    def __init__(self, arguments):
        self.seconds = {part: share * arguments.step_s for part, share in SHARES.items()}
        self.busy = arguments.busy
        self.period_s, self.stall_s, self.stalled = arguments.period_s, 0.0, 0.0
        self.chance = random.Random(os.environ["RANK"])

    def take(self, part, share=1.0):
        seconds = self.seconds[part] * share * self.chance.uniform(0.95, 1.05)
        busy_until = time.thread_time() + seconds * self.busy
        while time.thread_time() < busy_until:
            pass
        time.sleep(seconds * (1 - self.busy))
        if part == "forward" and self.stall_s and time.monotonic() > self.stalled + self.period_s:
            time.sleep(self.stall_s)
            self.stalled = time.monotonic()


class Paced(torch.autograd.Function):
    """Passes on what it gets, and takes its time in both directions, in proportion to the batch."""

    @staticmethod
    def forward(context, inputs, pace):
        context.pace, context.share = pace, len(inputs) / BATCH
        pace.take("forward", context.share)
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        context.pace.take("backward", context.share)
        return gradient, None


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
        self.pace = pace

    def forward(self, inputs):
        for number, block in enumerate(self.blocks):
            inputs = block(inputs)
            if number == 1:  # behind parameters: where no gradient goes there is no backward pass
                inputs = Paced.apply(inputs, self.pace)
        return self.last(inputs)


class Optimizer(torch.optim.SGD):
    def __init__(self, parameters, pace):
        super().__init__(parameters, lr=0.01)
        self.pace = pace

    def step(self, closure=None):
        self.pace.take("optimizer")
        return super().step(closure)


class Samples(IterableDataset):
    def __init__(self, pace):
        self.pace, self.batch, self.sleeps, self.ended = pace, BATCH, False, False

    def __iter__(self):
        while not self.ended:
            self.pace.take("data")
            if self.sleeps:
                time.sleep(FOREVER_S)
            inputs = torch.randn(self.batch, WIDTH)
            yield inputs, inputs.sum(dim=1, keepdim=True).sin()


class Training:
    def __init__(self, arguments):
        self.arguments, self.how = arguments, arguments.how
        self.rank, self.chosen = int(os.environ["RANK"]), int(os.environ["RANK"]) in arguments.ranks
        self.pace = Pace(arguments)
        if arguments.busy:
            os.sched_setaffinity(0, {arguments.core} if self.chosen else os.sched_getaffinity(0) - {arguments.core})
        self.hang_before("before-rendezvous")
        dist.init_process_group("gloo")
        self.groups = [dist.new_group() for _ in range(2)]
        self.hang_before("before-model")
        self.model = self.wrapped(Network(self.pace))
        self.optimizer = Optimizer(self.model.parameters(), self.pace)
        self.samples = Samples(self.pace)

    def wrapped(self, network):
        if self.arguments.strategy == "ddp":
            return DistributedDataParallel(network)
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for block in network.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(network, mesh=mesh)

    def run(self):
        traced = lambda model: contextlib.nullcontext()
        if self.arguments.traceml:
            import traceml_ai as traceml
            traceml.init(mode="auto")
            traced = traceml.trace_step
        for step, (inputs, targets) in enumerate(DataLoader(self.samples, batch_size=None), start=1):
            with traced(self.model):
                loss = (self.model(inputs) - targets).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.after(step, loss.detach())
            if step == self.arguments.steps:
                break
        dist.barrier()
        dist.destroy_process_group()

    def after(self, step, loss):
        """What a script does between two steps. Here the fault comes."""
        struck = step == self.arguments.at_step
        strikes = struck and self.chosen
        if strikes:
            self.note()
            self.strike()
        self.pace.take("host")
        if struck or step % REPORT_EVERY == 0:
            self.report(loss, strikes)
        if struck or step % SAVE_EVERY == 0:
            self.save(strikes)

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

    def save(self, strikes):
        path = self.arguments.dir / f"shard-{self.rank}.pt"
        if strikes and self.how == "save":
            path.unlink(missing_ok=True)
            os.mkfifo(path)  # opened for writing only when someone reads
        torch.save(self.optimizer.state_dict(), path)

    def hang_before(self, how):
        if self.chosen and self.how == how:
            self.note()
            time.sleep(FOREVER_S)

    def note(self):
        new = self.arguments.dir / f"fault.{self.rank}"
        new.write_text(f"{time.time():.3f}")
        new.rename(self.arguments.dir / "fault")

    def strike(self):
        extra, seconds = self.arguments.extra_s, self.pace.seconds
        match self.how:
            case "spin":
                while True:
                    pass
            case "spin-gil":
                re.fullmatch("(a|a)*b", 200 * "a")
            case "unsent-message":
                dist.recv(torch.zeros(1), src=(self.rank + 1) % dist.get_world_size())
            case "early-end":
                self.samples.ended = True
            case "data-sleep":
                self.samples.sleeps = True
            case "fifo":
                pipe = self.arguments.dir / "pipe"
                os.mkfifo(pipe)
                os.read(os.open(pipe, os.O_RDWR), 1)
            case "main-ended":
                threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()
                raise RuntimeError("the main thread ends here")
            case "slow-forward" | "slow-backward" | "slow-optimizer" | "slow-data" | "slow-host":
                seconds[self.how.removeprefix("slow-")] += extra
            case "slow-everywhere":
                for part in seconds:
                    seconds[part] += extra / len(seconds)
            case "large-batch":
                self.samples.batch = round(BATCH * (1 + extra / (seconds["forward"] + seconds["backward"])))
            case "intermittent":
                self.pace.stall_s = extra


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", required=True)
    parser.add_argument("--strategy", choices=["ddp", "fsdp2"], required=True)
    parser.add_argument("--ranks", type=int, nargs="+", required=True, help="those that go wrong")
    parser.add_argument("--at-step", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--extra-s", type=float, default=0.0)
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
