"""Measures the cost of the probe: recipes with and without it, in pairs, and the CPU time that the probe itself counts.

    cargo xtask bench probe                                    keeps the tables in docs/benchmarks.md
    python crates/torch-probe/tests/measure_overhead.py [--only ddp-2 …] [--pairs 20] [--blocks 6] [--minutes 15] [--table FILE]

A pair is two trainings that alternate: while one trains a block of STEPS steps, all ranks of the other are stopped (SIGSTOP). The first one
changes from pair to pair, so both have the same load on the machine. The output contains the ratios with/without of wall and CPU time per
block (median of the pairs, and the 95 % interval of that median from order statistics), and the probe's own CPU time per step, of the
rank with the highest value. On a machine with other load, rely on the last value.
"""

import argparse
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from conftest import PACKAGE, Listener, environment
from interval import interval

STEPS = 10  # per block: the recipe prints a line at the end of each
LIMIT_MS, LIMIT_SHARE = 0.3, 0.005  # per step: the higher one applies

RECIPES = PACKAGE / "recipes"
FSDP = ("--layers=24", "--batch-size=16", "--compare-steps=0", "--validate-every=1000000")
TRAININGS = {  # name -> (recipe, its arguments, ranks)
    "ddp-1": (RECIPES / "ddp" / "main.py", ("--batch-size=16",), 1),
    "ddp-2": (RECIPES / "ddp" / "main.py", ("--batch-size=16",), 2),
    "fsdp-2": (RECIPES / "fsdp" / "main.py", FSDP, 2),
}
TITLES = {"ddp-1": "`ddp`, 1 rank", "ddp-2": "`ddp`, 2 ranks", "fsdp-2": "`fsdp`, 2 ranks, 24 blocks"}


def main():
    parser = argparse.ArgumentParser(description="Measure the probe's overhead.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=6, help="blocks of ten steps that each process of a pair trains")
    parser.add_argument("--only", action="append", choices=sorted(TRAININGS), help="which trainings; all where none is named")
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no pair of a training after this time, however many are left")
    parser.add_argument("--table", type=pathlib.Path, default=None, metavar="FILE", help="write the result there as well, as a table in Markdown")
    arguments = parser.parse_args()
    tables = [measure(arguments, name) for name in arguments.only or TRAININGS]
    if arguments.table:
        arguments.table.write_text("\n".join(tables))


def measure(arguments, name):
    """Returns the table of one training, and prints it."""
    deadline, pairs = time.monotonic() + 60 * arguments.minutes, []
    while len(pairs) < arguments.pairs and time.monotonic() < deadline:
        pair = measure_pair(arguments, name, watched_first=len(pairs) % 2 == 0)
        pairs.append(pair)
        figures = f"wall {pair.wall:.4f}, processor {pair.processor:.4f}, the probe's own {pair.own_ms:.3f} ms a step"
        print(f"{name}, pair {len(pairs)}: {figures}", file=sys.stderr, flush=True)
    said = table(arguments, name, pairs)
    print(said)
    if len(pairs) < arguments.pairs:
        raise SystemExit(f"only {len(pairs)} of {arguments.pairs} pairs began within {arguments.minutes:g} minutes; the machine is busy, or give more --minutes")
    return said


def table(arguments, name, pairs):
    own = [pair.own_ms for pair in pairs]
    limit_ms = max(LIMIT_MS, LIMIT_SHARE * 1e3 * statistics.median(pair.step_s for pair in pairs))
    kept = "yes" if statistics.median(own) <= limit_ms else "NO"
    rows = [
        ("wall time, with ÷ without", [pair.wall for pair in pairs], 4, ""),
        ("processor time, with ÷ without", [pair.processor for pair in pairs], 4, ""),
        ("the probe's own processor time, ms a step", own, 3, f"≤ {limit_ms:.3g}, the larger of {LIMIT_MS:g} ms and {LIMIT_SHARE:.1%} of a step: {kept}"),
        ("a step without it, ms", [1e3 * pair.step_s for pair in pairs], 1, ""),
    ]
    lines = [f"| {TITLES[name]}; {len(pairs)} pairs × {arguments.blocks} blocks × {STEPS} steps | median | 95 % interval | aim |", "|---|---:|---:|---|"]
    for what, values, digits, aim in rows:
        low, high = interval(values)
        lines.append(f"| {what} | {statistics.median(values):.{digits}f} | {low:.{digits}f} – {high:.{digits}f} | {aim} |")
    return "\n".join(lines) + "\n"


class Pair:
    """The results of two processes that alternate."""

    def __init__(self, watched, alone, byes):
        self.wall = statistics.median(watched.wall_s) / statistics.median(alone.wall_s)
        self.processor = statistics.median(watched.processor_s) / statistics.median(alone.processor_s)
        self.step_s = statistics.median(alone.wall_s) / STEPS
        self.own_ms = max(bye["probe_cpu_ns"] / bye["step"] * 1e-6 for bye in byes)


def measure_pair(arguments, name, watched_first):
    with tempfile.TemporaryDirectory() as folder:
        listener = Listener(pathlib.Path(folder) / "socket")
        trainings = []
        try:
            watched = Training(arguments, name, listener.path, trainings)
            alone = Training(arguments, name, None, trainings)
            for training in trainings:
                training.wait_for_step(1)
            for block in range(1, arguments.blocks + 2):  # the first is the warm-up
                for training in (watched, alone) if watched_first else (alone, watched):
                    training.train_block(STEPS * block)
            for training in trainings:
                training.end()
        finally:
            for training in trainings:
                training.kill()
            listener.close()
        return Pair(watched, alone, listener.of("bye"))


class Training:
    """The ranks of a recipe, which are stopped except for the requested blocks."""

    def __init__(self, arguments, name, socket_path, trainings):
        recipe, own, count = TRAININGS[name]
        steps = STEPS * (arguments.blocks + 2)
        command = [sys.executable, str(recipe), f"--steps={steps}", f"--log-every={STEPS}", *own]
        job = {"GROUP_RANK": 0, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "TORCHELASTIC_RUN_ID": "measured"}
        if count > 1:
            from torch.distributed import TCPStore

            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent hosts it
            job.update(MASTER_PORT=self._store.port, TORCHELASTIC_USE_AGENT_STORE=True, TORCHELASTIC_RESTART_COUNT=0)
        self.processes = []
        trainings.append(self)
        for rank in range(count):
            ranks = {**job, "RANK": rank, "LOCAL_RANK": rank}
            env = {**environment(socket_path), **{key: str(value) for key, value in ranks.items()}}
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            self.processes.append(subprocess.Popen(command, env=env, stdout=output, text=True))
        self.wall_s, self.processor_s = [], []
        self._warm = False

    def wait_for_step(self, number):
        for line in self.processes[0].stdout:
            if line.startswith(f"step {number} loss "):
                return self._signal(signal.SIGSTOP)
        raise SystemExit(f"the recipe ended before it came to step {number}")

    def train_block(self, last_step):
        processor_s, start = self._processor_s(), time.perf_counter()
        self._signal(signal.SIGCONT)
        self.wait_for_step(last_step)
        wall_s = time.perf_counter() - start
        if self._warm:
            self.wall_s.append(wall_s)
            self.processor_s.append(self._processor_s() - processor_s)
        self._warm = True

    def end(self):
        self._signal(signal.SIGCONT)
        self.processes[0].communicate(timeout=120)
        for process in self.processes:
            process.wait(timeout=120)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def _signal(self, number):
        for process in self.processes:
            process.send_signal(number)

    def _processor_s(self):
        """Returns the CPU time of all threads of all ranks, from the scheduler's nanoseconds."""
        tasks = [task for process in self.processes for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


if __name__ == "__main__":
    main()
