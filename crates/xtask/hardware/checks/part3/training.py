"""Shared code of this part's steps: available GPUs, training scripts and their output, ranks in Lockstep's API."""

import contextlib
import json
import sys
import time
import traceback

from .. import machine
from ..lockstep import wait_for

# Logs come to the collector about once per second.
LOG_S = 5


def gpus():
    """Number of GPUs of this machine; simulated ones do not count."""
    return len(machine.nvidia_smi("index"))


def cuda(check):
    """PyTorch where it can use a GPU, else `None`. On a machine without a GPU it is not imported, which takes seconds."""
    torch = check.torch() if gpus() else None
    return torch if torch is not None and torch.cuda.is_available() else None


def script(check, name):
    return str(check.root / "checks" / "trainings" / f"{name}.py")


def result(lockstep, run, rank=0):
    """The JSON object that a script has printed in its last line."""

    def printed():
        lines = [line for line in lockstep.output(run, rank).splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else None

    return wait_for(printed, LOG_S, f"the result of rank {rank} of the run {run}")


def ranks_of(found):
    """Ranks of a run's last attempt, in order."""
    ranks = [rank for node in found["attempts"][-1]["nodes"] for rank in node["ranks"]]
    return sorted(ranks, key=lambda rank: rank["rank"])


def within(limit_s, condition):
    """Returns the result of `condition` once it is true, or its last result after the limit: this is a result too."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def reported(sheet, what):
    """Makes a failure of one comparison a row, so that the others continue."""
    try:
        yield
    except Exception as error:  # whatever it is, it is of this comparison only
        traceback.print_exc(file=sys.stderr)
        sheet.failed(what, f"{type(error).__name__}: {error}")
