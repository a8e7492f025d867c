"""No DDP: the script averages gradients itself, in a step with a closure; also compiles functions that clip and that average."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss


for _ in range(5):
    optimizer.step(closure)


def averaged(weight):
    dist.all_reduce(weight)
    return functional.all_reduce(weight, "sum", dist.group.WORLD) + 1


def clipped(weight):
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    return weight + 1


if hasattr(torch.nn.utils, "get_total_norm"):  # torch 2.6: before that, clipping does not compile without the probe either
    torch.compile(clipped, backend="eager", fullgraph=True)(model.weight)
    torch.compile(averaged, backend="eager", fullgraph=True)(model.weight.detach())
dist.destroy_process_group()
