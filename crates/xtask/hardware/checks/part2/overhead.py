"""The cost of the probe: the same training with and without it, in two processes that alternate, block by block.

    with     | block |       |       | block | block |       …      each waits for the GPU and then for its next turn
    without  |       | block | block |       |       | block        a pair of blocks: one ratio; the first one changes

A training that fills the GPU shows how much longer a step takes. One that waits for the host shows the time of the
probe's own calls: in the other one they overlap with the GPU's work, or wait for space in its queue.
"""

import contextlib
import importlib.util
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import threading
import time

from interval import interval

from .. import machine
from ..lockstep import patient

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "trainings" / "blocks.py"
WALL = "wall time of a step that fills the device, with the probe ÷ without"
OWN = "the probe's own processor time per step"
ADDED = "wall time that the probe adds to a step that waits for the host"
# docs/benchmarks.md: at most half a per cent of a step of 100 ms by itself; twice that with what it makes others wait for.
WALL_MAX, OWN_MAX_S, ADDED_MAX_S = 1.01, 0.0005, 0.001
# The probe's first steps cost some milliseconds once; over fewer steps they would be most of the figure.
OWN_STEPS_MIN = 100
# Fewer values have no 95 % interval of their median.
INTERVAL_FROM = 6
START_S, BLOCK_S, END_S = 90, 60, 20
# The whole step has 110 seconds: no pair of blocks begins after these, of each kind of training.
FILLS_UNTIL_S, HOST_UNTIL_S = 75, 95


def run(check):
    if importlib.util.find_spec("torch") is None:
        for what in (WALL, OWN, ADDED):
            check.sheet.not_available(what, "this Python has no PyTorch")
        return
    began = time.monotonic()
    fills = Pairs(check, "fills", filling())
    fills.measure(processes=1 if check.quick else 2, pairs=2 if check.quick else 12, until=began + patient(FILLS_UNTIL_S))
    within(check.sheet, WALL, fills, fills.ratios("wall_s"), WALL_MAX, "")
    if check.quick:
        for what in (OWN, ADDED):
            check.sheet.not_available(what, "a quick check trains too few steps")
        return
    host = Pairs(check, "host", waiting())
    host.measure(processes=1, pairs=16, until=began + HOST_UNTIL_S)
    own(check.sheet, host)
    within(check.sheet, ADDED, host, host.differences("wall_s"), ADDED_MAX_S, "s")


def own(sheet, pairs):
    """A mean over all steps of a process."""
    if not pairs.own_s:
        return sheet.failed(OWN, pairs.why or "the probe said no last words, or the training was too short")
    return sheet.between(OWN, statistics.median(pairs.own_s), -math.inf, OWN_MAX_S, unit="s", note=f"{len(pairs.own_s)} trainings")


def filling():
    """A step of some 80 ms on an H200; two of them need 40 GiB, or 8 GiB on a smaller GPU."""
    large = gpu_memory_mib() > 60 << 10
    batch, sequence = (16, 1024) if large else (4, 512)
    return ["--layers", 12, "--hidden", 1024, "--batch", batch, "--sequence", sequence, "--precision", "bf16-mixed"]


def waiting():
    """Small kernels, and the loss is printed after each step, which empties the GPU's queue."""
    return ["--layers", 12, "--hidden", 256, "--batch", 2, "--sequence", 256, "--vocabulary", 1024, "--precision", "bf16-mixed", "--log-every", 1]


def gpu_memory_mib():
    found = [row[0] for row in machine.nvidia_smi("memory.total")]
    return int(found[0]) if found and found[0].isdecimal() else 0


def within(sheet, what, pairs, values, limit, unit):
    """A row of the median. It differs only when the limit lies below the whole 95 % interval."""
    if not values:
        return sheet.failed(what, pairs.why or "nothing was measured in time")
    median, (low, high) = statistics.median(values), interval(values)
    sheet.fact(what, values)
    if len(values) < INTERVAL_FROM:
        return sheet.not_available(what, f"only {len(values)} pairs of blocks, whose median is {median:.6g}")
    note = f"{len(values)} values, 95 % interval of the median {low:.6g} to {high:.6g}"
    if low <= limit < median:
        return sheet.not_available(what, f"undecided: median {median:.6g}, limit {limit:g}; {note}")
    return sheet.between(what, median, -math.inf, limit, unit=unit, note=note)


class Pairs:
    """Pairs of blocks: the one with the probe, the one without."""

    def __init__(self, check, name, arguments):
        self._check, self._name, self._arguments = check, name, arguments
        self.blocks, self.own_s, self.why = [], [], ""

    def measure(self, processes, pairs, until):
        for number in range(processes):
            if time.monotonic() > until:
                break
            try:
                self._measure(self._check.folder / f"{self._name}-{number}", pairs, until)
            except Exception as error:  # the pairs so far count, and the other kind of training continues
                self.why = f"{type(error).__name__}: {error}"
        facts = {"pairs": self.blocks, "step_s": self.step_s(), "processor": self.ratios("processor_s"), "own_s": self.own_s}
        self._check.sheet.fact(f"overhead: {self._name}", facts)

    def _measure(self, path, pairs, until):
        with Listener(path) as listener, contextlib.ExitStack() as stack:
            watched, alone = (stack.enter_context(Training(self._check, self._arguments, socket_path)) for socket_path in (path, None))
            for training in (watched, alone):
                training.read(START_S)
            for number in range(pairs + 1):
                if number and time.monotonic() > until:
                    break
                order = (watched, alone) if number % 2 == 0 else (alone, watched)
                took = {training: training.block() for training in order}
                if number:  # the first is the warm-up
                    self.blocks.append((took[watched], took[alone]))
            if not self._check.quick:
                watched.end()
        self.own_s += [1e-9 * bye["probe_cpu_ns"] / bye["step"] for bye in listener.records("bye") if bye["step"] >= OWN_STEPS_MIN]

    def ratios(self, key):
        return [watched[key] / alone[key] for watched, alone in self.blocks]

    def differences(self, key):
        return [(watched[key] - alone[key]) / alone["steps"] for watched, alone in self.blocks]

    def step_s(self):
        return statistics.median(alone["wall_s"] / alone["steps"] for _, alone in self.blocks) if self.blocks else None


class Training:
    """One process of a pair, as torchrun would start it; a context manager."""

    def __init__(self, check, arguments, socket_path):
        steps = 1 if check.quick else 10
        command = [sys.executable, SCRIPT, "--cpu-small", "--log-every", 0, *arguments, "--block", steps]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": sys.stderr, "text": True}
        self.process = subprocess.Popen(list(map(str, command)), env=environment(check, socket_path), **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def block(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read(BLOCK_S)

    def read(self, limit_s):
        """The next line that is an object. A process that hangs is ended, so that reading ends too."""
        timer = threading.Timer(limit_s, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            timer.cancel()
        raise RuntimeError(f"the training ended with {self.process.wait(END_S)}, or was ended after {limit_s} s")

    def end(self):
        """Lets it end by itself, so that the probe sends its last records."""
        self.process.stdin.close()
        self.process.wait(END_S)


def environment(check, socket_path):
    """Of a single rank; with a socket the probe is there, as the agent would have it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_") and name != "PYTHONPATH"}
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "overhead", "OMP_NUM_THREADS": "1"}
    probe = {"PYTHONPATH": str(check.root / "inject"), "LOCKSTEP_PROBE_SOCKET": str(socket_path), "LOCKSTEP_PROBE_DEBUG": "1"}
    names = {"LOCKSTEP_RUN": "overhead", "LOCKSTEP_ATTEMPT": "1", "LOCKSTEP_NODE": "overhead"}
    return {**inherited, **rank, **({} if socket_path is None else {**probe, **names}), "PYTHONDONTWRITEBYTECODE": "1"}


class Listener:
    """Receives the probe's datagrams, like the agent; a context manager."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.2)
        self._datagrams, self._open = [], True
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._open = False
        self._thread.join()
        self._socket.close()

    def _receive(self):
        while True:
            try:
                self._datagrams.append(self._socket.recv(65536))
            except TimeoutError:
                if not self._open:
                    return

    def records(self, kind):
        return [record for record in map(json.loads, self._datagrams) if record["kind"] == kind]
