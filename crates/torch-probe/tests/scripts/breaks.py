"""Does things that hooks do not expect, selected on the command line, and prints its results: the same lines with and without the probe."""

import sys

import torch

kind = sys.argv[1]


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError("no gradient today")


def model_and_optimizer():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def descend(model):
    """An optimizer that is not from torch."""
    for parameter in model.parameters():
        parameter -= 0.1 * parameter.grad


def train(_index=0):
    model, optimizer = model_and_optimizer()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    if kind == "by-hand":
        optimizer.step = lambda: descend(model)
    if kind == "compiled":
        step = torch.compile(step, backend="eager")
    for number in range(5):
        x = torch.full((3, 4), 1.0 + number)
        if kind == "raises" and number == 2:
            try:
                Refuses.apply(model(x)).sum().backward()
            except ArithmeticError as error:
                print(f"caught {error}", flush=True)
        print(f"loss={step(x).item():.9g}", flush=True)


def reenters():
    """A backward pass within another, and an optimizer without gradients."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.step()

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            with torch.enable_grad():
                inner = torch.ones(3, requires_grad=True)
                inner.square().sum().backward()
            return gradient * inner.grad

    Nested.apply(weight).sum().backward()
    optimizer.step()
    torch.autograd.backward([weight.sum(), weight.prod()], [torch.ones(()), torch.ones(())])
    optimizer.step()
    print(weight.tolist(), flush=True)


if __name__ == "__main__":
    if kind == "spawns":
        torch.multiprocessing.spawn(train, nprocs=1)
    elif kind == "reenters":
        reenters()
    elif kind == "patched":  # a script that puts its own wrappers around what the probe has wrapped, and takes them off again
        original = torch.autograd.backward
        torch.autograd.backward = lambda *args, **kwargs: original(*args, **kwargs)
        train()
        torch.autograd.backward = original
        del torch.nn.utils.clip_grad_norm_
    elif kind == "out-of-memory":
        torch.empty(1 << 50, dtype=torch.uint8)
    else:
        train()
