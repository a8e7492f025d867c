"""Trains as gpt.py does, and records a few of its steps with torch.profiler: their phases again, by the GPU's own record of its kernels.

A phase ends on the GPU when the last kernel that was launched before the host left the phase has ended, and not before the host has left it:

    host  | forward | backward |optimizer|            launches
    GPU        |    forward    |    backward    |optimizer|      kernels, by when they were launched

On a CPU there are no kernels, and the host's times remain.
"""

import bisect
import itertools
import json
import os
import signal
import tempfile

import gpt
import torch
from torch.profiler import ProfilerActivity, profile

PHASES = ("data", "forward", "backward", "optimizer")
LAUNCHES = ("cuda_runtime", "cuda_driver")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def main():
    parser = gpt.parser()
    parser.add_argument("--profile-after", type=int, default=12, help="steps before those that are recorded")
    parser.add_argument("--profile-steps", type=int, default=6)
    arguments = parser.parse_args()
    training = gpt.start(arguments)
    signal.signal(signal.SIGTERM, training.stop)
    while not training.is_over() and training.steps < arguments.profile_after:
        training.step()
    profiled = record(training, arguments.profile_steps)
    while not training.is_over():
        training.step()
    training.finish(profiled=profiled, torch=torch.__version__)


def record(training, count):
    """One dictionary per recorded step. The first has no `step_s`: the end of the step before it is not in the trace. A trace without kernels gives none."""
    first = training.steps + 1
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if training.device.type == "cuda" else [])
    with profile(activities=activities) as profiler:
        for _ in range(count):
            training.step()
        training.clock.wait()
    handle, path = tempfile.mkstemp(suffix=".json", dir=os.path.dirname(training.arguments.result or "") or None)
    os.close(handle)
    try:
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
        if training.device.type == "cuda" and not any(event.get("cat") == "kernel" for event in events):
            raise ValueError("it has no kernels")
        return phases(events, first)
    except (KeyError, ValueError, RuntimeError) as error:
        print(f"the trace cannot be read: {type(error).__name__}: {error}", flush=True)
        return []
    finally:
        os.unlink(path)


def phases(events, first):
    stream = Stream(events)
    named = [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "user_annotation"]
    windows = {name: sorted((start, end) for other, start, end in named if other == name) for name in PHASES}
    steps, before = [], None
    for number, step in enumerate(zip(*windows.values()), first):
        found = {f"{name}_s": 1e-6 * (stream.reached(end) - stream.reached(start)) for name, (start, end) in zip(PHASES, step)}
        end = stream.reached(step[-1][1])
        if before is not None:
            found |= {"step_s": 1e-6 * (end - before), "busy_s": 1e-6 * stream.busy(before, end)}
        steps.append({"step": number, **found})
        before = end
    return steps


class Stream:
    """Work on the GPU in the order in which the host launched it. Times are the trace's microseconds."""

    def __init__(self, events):
        launched = {event["args"]["correlation"]: event["ts"] for event in events if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})}
        work = [event for event in events if event.get("cat") in ON_GPU]
        known = sorted((launched[event["args"]["correlation"]], event["ts"] + event["dur"]) for event in work if event["args"].get("correlation") in launched)
        self._launched = [at for at, _ in known]
        self._ended = list(itertools.accumulate((end for _, end in known), max))
        self._work = [(event["ts"], event["ts"] + event["dur"]) for event in work]

    def reached(self, host):
        """When the GPU has done everything that was launched before this time of the host."""
        count = bisect.bisect_left(self._launched, host)
        return max(host, self._ended[count - 1]) if count else host

    def busy(self, start, end):
        """The sum of the work's own times between two times; work in several streams at once counts as often."""
        return sum(max(0.0, min(ended, end) - max(began, start)) for began, ended in self._work)


if __name__ == "__main__":
    main()
