"""Ranks and nodes that end.

    exception                 raises an exception
    segmentation-fault        reads from address 0
    exit-code                 exits with MAGNITUDE
    exits-early               exits with 0 while the others go on
    out-of-memory             wants more memory than a process can have
    killed                    the test kills the process
    agent-killed              the test kills the agent of the rank's node; the ranks go on
    node-lost                 the test kills everything on the rank's node
"""

import ctypes
import sys

import torch

TOO_MANY_BYTES = 1 << 52


def raise_exception(training):
    raise ValueError(f"sample 4711 of step {training.step} cannot be read")


def read_address_0(training):
    ctypes.string_at(0)


def exit_with_code(training):
    sys.exit(int(training.arguments.magnitude))


def exit_early(training):
    sys.exit(0)


def run_out_of_memory(training):
    torch.empty(TOO_MANY_BYTES, dtype=torch.uint8)


STRIKES = {
    "exception": raise_exception,
    "segmentation-fault": read_address_0,
    "exit-code": exit_with_code,
    "exits-early": exit_early,
    "out-of-memory": run_out_of_memory,
}
