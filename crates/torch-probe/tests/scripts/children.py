"""A rank that starts other Python processes in every way: none of them may send records for the rank."""

import multiprocessing
import os
import subprocess
import sys


def train():
    import torch

    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.square().sum().backward()
    optimizer.step()


if __name__ == "__main__":
    import torch  # noqa: F401

    print(f"pid of rank {os.environ['RANK']}: {os.getpid()}", flush=True)
    for method in ("spawn", "fork"):
        process = multiprocessing.get_context(method).Process(target=train)
        process.start()
        process.join()
        assert process.exitcode == 0
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    train()
