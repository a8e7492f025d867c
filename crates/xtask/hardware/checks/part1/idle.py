"""Compares every NVML value of the agent with nvidia-smi and pynvml, without load from this program."""

import time

from ..lockstep import Lockstep
from . import beside

SECONDS, QUICK_SECONDS = 25, 3
# The last samples are still on their way to the collector.
ARRIVAL_S = 1.5


def run(check):
    with beside.Beside(check) as recording, Lockstep(check) as lockstep:
        time.sleep(QUICK_SECONDS if check.quick else SECONDS)
        time.sleep(ARRIVAL_S)
        beside.report(check, lockstep, recording)
