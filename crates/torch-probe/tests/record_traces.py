"""Writes data/*.csv: the values of rank 0's probe in four real runs of the recipe `ddp`, per step: step, loss, grad_norm.

The alert rules on exploding gradients are designed and tested on them. Clipping at 1e30 changes nothing and makes the script compute
the norm at every step; the probe alone would skip some to save time. Run: python tests/record_traces.py
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile

from conftest import RECIPE, Listener, rank_environment

TRACES = {
    "healthy": ("--lr", "3e-3", "--steps", "200"),
    "warmup-spike": ("--lr", "3e-2", "--warmup", "1", "--steps", "120"),  # loss and norm jump early, then it learns
    "lr10": ("--lr", "10", "--steps", "120"),
    "lr1000": ("--lr", "1000", "--steps", "120"),
}


def record(name, arguments):
    with tempfile.TemporaryDirectory() as folder:
        listener = Listener(pathlib.Path(folder) / "socket")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = {**os.environ, **rank_environment(listener.path)}
        try:
            subprocess.run([*launcher, str(RECIPE), "--grad-clip", "1e30", *arguments], env=environment, check=True)
        finally:
            listener.close()
    with open(pathlib.Path(__file__).parent / "data" / f"{name}.csv", "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", "loss", "grad_norm"])
        rows.writerows((r["step"], r["loss"], r["grad_norm"]) for r in listener.of("step", 0))


if __name__ == "__main__":
    for name, arguments in TRACES.items():
        record(name, arguments)
