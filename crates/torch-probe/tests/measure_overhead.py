"""Measures what the probe costs: the recipe `ddp` with and without it, pair by pair, and the processor time the probe counts itself.

    cargo xtask bench probe                                    keeps the table in docs/benchmarks.md
    python crates/torch-probe/tests/measure_overhead.py [--pairs 20] [--blocks 6] [--batch-size 16] [--minutes 15] [--table FILE]

A pair is two processes of one rank that take turns: while one trains a block of STEPS steps the other is stopped (SIGSTOP), and who goes first
changes from pair to pair, so both meet the same neighbours on the machine. Printed are the ratios with/without of wall and of processor time a
block (median of the pairs, and the 95 % interval of that median by the order of the pairs alone), and the probe's own processor time a step.
On a machine with other work the last is the figure to trust.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from conftest import RECIPE, Listener, environment
from interval import interval

STEPS = 10  # of a block: the recipe says a line at the end of each
LIMIT_MS = 0.5  # half a per cent of a step of 100 ms


def main():
    parser = argparse.ArgumentParser(description="Measure the probe's overhead.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=6, help="blocks of ten steps that each process of a pair trains")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no pair after this time, however many are left")
    parser.add_argument("--table", type=pathlib.Path, default=None, metavar="FILE", help="write the result there as well, as a table in Markdown")
    arguments = parser.parse_args()
    deadline, pairs = time.monotonic() + 60 * arguments.minutes, []
    while len(pairs) < arguments.pairs and time.monotonic() < deadline:
        pair = measure_pair(arguments, watched_first=len(pairs) % 2 == 0)
        pairs.append(pair)
        print(f"pair {len(pairs)}: wall {pair.wall:.4f}, processor {pair.processor:.4f}, the probe's own {pair.own_ms:.3f} ms a step", file=sys.stderr, flush=True)
    said = table(arguments, pairs)
    print(said)
    if len(pairs) < arguments.pairs:
        raise SystemExit(f"only {len(pairs)} of {arguments.pairs} pairs began within {arguments.minutes:g} minutes; the machine is busy, or give more --minutes")
    if arguments.table:
        arguments.table.write_text(said)


def table(arguments, pairs):
    own = [pair.own_ms for pair in pairs]
    kept = "yes" if statistics.median(own) <= LIMIT_MS else "NO"
    rows = [
        ("wall time, with ÷ without", [pair.wall for pair in pairs], 4, ""),
        ("processor time, with ÷ without", [pair.processor for pair in pairs], 4, ""),
        ("the probe's own processor time, ms a step", own, 3, f"≤ {LIMIT_MS:g}, half a per cent of 100 ms: {kept}"),
        ("a step without it, ms", [1e3 * pair.step_s for pair in pairs], 1, ""),
    ]
    lines = [f"| {len(pairs)} pairs × {arguments.blocks} blocks × {STEPS} steps | median | 95 % interval | aim |", "|---|---:|---:|---|"]
    for what, values, digits, aim in rows:
        low, high = interval(values)
        lines.append(f"| {what} | {statistics.median(values):.{digits}f} | {low:.{digits}f} – {high:.{digits}f} | {aim} |")
    return "\n".join(lines) + "\n"


class Pair:
    """What two processes that took turns have shown."""

    def __init__(self, watched, alone, bye):
        self.wall = statistics.median(watched.wall_s) / statistics.median(alone.wall_s)
        self.processor = statistics.median(watched.processor_s) / statistics.median(alone.processor_s)
        self.step_s = statistics.median(alone.wall_s) / STEPS
        self.own_ms = bye["probe_cpu_ns"] / bye["step"] * 1e-6


def measure_pair(arguments, watched_first):
    with tempfile.TemporaryDirectory() as folder:
        listener = Listener(pathlib.Path(folder) / "socket")
        trainings = []
        try:
            watched = Training(arguments, listener.path, trainings)
            alone = Training(arguments, None, trainings)
            for training in trainings:
                training.wait_for_line("step 1 ")
            for _ in range(arguments.blocks + 1):  # the first is warming up
                for training in (watched, alone) if watched_first else (alone, watched):
                    training.train_block()
            for training in trainings:
                training.end()
        finally:
            for training in trainings:
                training.process.kill()
            listener.close()
        return Pair(watched, alone, listener.of("bye")[0])


class Training:
    """One rank of the recipe, which is stopped but for the blocks it is asked to train."""

    def __init__(self, arguments, socket_path, trainings):
        steps = STEPS * (arguments.blocks + 2)
        command = [sys.executable, str(RECIPE), f"--steps={steps}", f"--log-every={STEPS}", f"--batch-size={arguments.batch_size}"]
        job = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "TORCHELASTIC_RUN_ID": "measured"}
        env = {**environment(socket_path), **{name: str(value) for name, value in job.items()}}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        trainings.append(self)
        self.wall_s, self.processor_s = [], []
        self._warm = False

    def wait_for_line(self, beginning):
        for line in self.process.stdout:
            if line.startswith(beginning):
                return self.process.send_signal(signal.SIGSTOP)
        raise SystemExit(f"the recipe ended before it said {beginning!r}")

    def train_block(self):
        processor_s, start = self._processor_s(), time.perf_counter()
        self.process.send_signal(signal.SIGCONT)
        self.wait_for_line("step ")
        wall_s = time.perf_counter() - start
        if self._warm:
            self.wall_s.append(wall_s)
            self.processor_s.append(self._processor_s() - processor_s)
        self._warm = True

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.communicate(timeout=60)

    def _processor_s(self):
        """Of all its threads, by the scheduler's nanoseconds."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
        return sum(int((tasks / task / "schedstat").read_text().split()[0]) for task in os.listdir(tasks)) * 1e-9


if __name__ == "__main__":
    main()
