"""Trains in several ways. In each, one rank is 200 ms late in some steps, at the place in the way's name. Prints every loss."""

import gc
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 8
LATE = (4, 6, 8)
SECONDS = 0.2

rank = int(os.environ["RANK"])
late = False


def be_late(who=1):
    if late and rank == who:
        time.sleep(SECONDS)


class LateInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        be_late()
        return gradient


def layers():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))


def buffered():
    return DistributedDataParallel(torch.nn.Sequential(layers(), torch.nn.BatchNorm1d(16)))


def sharded():
    model = torch.nn.Sequential(layers(), layers())
    for part in model:
        fully_shard(part)
    return fully_shard(model)


def split():
    return parallelize_module(layers(), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def plain(model, x):
    return model(x)


def late_before_forward(model, x):
    be_late()
    return model(x)


def late_with_buffers(model, x):
    """All ranks get rank 0's buffers."""
    be_late(who=0)
    return model(x)


def late_in_backward(model, x):
    return LateInBackward.apply(model(x))


def late_sender(model, x):
    """Rank 0 is the later stage of a pipeline."""
    if rank == 1:
        be_late()
        x = model(x)
        dist.send(x.detach(), 0)
        return x
    received = torch.empty(8, 16)
    dist.recv(received, 1)
    return model(received)


def averaged_late(model):
    be_late()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def averaged_later(model):
    """Like libraries that overlap: the waits come after the calls."""
    be_late()
    for work in [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]:
        work.wait()


def met_late(_model):
    be_late()
    dist.barrier()


def nothing(_model):
    pass


WAYS = [  # name, model, forward pass, behind the backward pass
    ("all_reduce", layers, plain, averaged_late),
    ("asynchronous", layers, plain, averaged_later),
    ("barrier", layers, plain, met_late),
    ("pipeline", layers, late_sender, nothing),
    ("tensor_forward", split, late_before_forward, nothing),
    ("tensor_backward", split, late_in_backward, nothing),
    ("fsdp2_forward", sharded, late_before_forward, nothing),
    ("fsdp2_backward", sharded, late_in_backward, nothing),
    ("ddp", lambda: DistributedDataParallel(layers()), late_before_forward, nothing),
    ("ddp_buffers", buffered, late_with_buffers, nothing),
]


def train(way, make, forward, behind):
    global late
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0 if way.startswith("tensor") else rank)
    for step in range(1, STEPS + 1):
        late = step in LATE
        x = torch.randn(8, 16, generator=generator, requires_grad=True)
        loss = forward(model, x).square().mean()
        loss.backward()
        behind(model)
        optimizer.step()
        optimizer.zero_grad()
        print(f"way={way} rank={rank} step={step} loss={loss.item():.9g}", flush=True)


dist.init_process_group("gloo")
for way in WAYS:
    dist.barrier()
    train(*way)
    gc.collect()  # the steps of the next optimizer must count
dist.destroy_process_group()
