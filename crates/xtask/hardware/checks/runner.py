"""Runs the steps of a part, each in a separate process, so that a step that fails, hangs or crashes affects only its own rows.

    ./confirm 1 ──▶ step "inventory" (process group of its own, time limit) ──▶ rows-inventory.jsonl
                ──▶ step "values" …                                          after each step: part-1.json, table.md

With `all --quick`, steps of all parts run at the same time.
"""

import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import lockstep, machine, sheet, table
from .lockstep import CannotStart

ROOT = pathlib.Path(os.path.abspath(__file__)).parents[1]
# For machines that are borrowed for ten minutes at a time: nine minutes for the steps, one for the transfers.
PART_LIMIT_S = 525
# Small work takes two minutes on two cores; a busy machine needs longer.
QUICK_PART_LIMIT_S = 240
# With --quick, so many steps run at once: they mostly wait. Together they may take this long, and each may take longer than if it ran alone.
AT_ONCE = 3
AT_ONCE_LIMIT_S = 600
# The trainings of part 2 take longest, and begin first.
AT_ONCE_ORDER = (2, 3, 1)
# The time for a step to stop its trainings after it was told to end.
GRACE_S = 10
LEAST_S = 5


@dataclass(frozen=True)
class Step:
    """One step: a function `checks.partN.NAME.run(check)`."""

    part: int
    name: str
    limit_s: int
    says: str


# The most important steps first, in case the part is interrupted.
STEPS = (
    Step(1, "inventory", 45, "GPUs, driver, topology, MIG"),
    Step(1, "idle", 60, "every NVML value, beside nvidia-smi and pynvml, without load"),
    Step(1, "load", 150, "GPM and PCIe counters under work of known size; every NVML value under load"),
    Step(1, "cost", 150, "what the agent costs, beside nvidia-smi dmon"),
    Step(1, "driver", 60, "raw answers of this driver: fields, GPM metrics, times of calls"),
    Step(1, "rights", 60, "what needs root"),
    Step(2, "probe", 120, "phases of a step and memory, beside CUDA events and torch.profiler"),
    Step(2, "planner", 90, "plan memory, beside measured peaks"),
    Step(2, "checkpointing", 170, "activation checkpointing through run apply, with its verdict"),
    Step(2, "mixed", 90, "automatic mixed precision through run apply, with its verdict"),
    Step(2, "overhead", 110, "training with and without the probe, in pairs"),
    Step(2, "indicators", 120, "the five indicators on a run that fills the GPU and on one that does not"),
    Step(3, "nccl", 150, "NCCL, nccl-probe and the recipes ddp and fsdp on GPUs"),
    Step(3, "asked", 90, "stacks and collectives of ranks on GPUs; a rank that is stopped"),
    Step(3, "memory", 120, "running out of GPU memory: cause and evidence"),
    Step(3, "xid", 90, "an illegal access of a child process: the Xid, its process and run"),
)


def run_part(part, settings, out):
    """Runs the steps of a part. Returns whether every step came to an end by itself."""
    out.mkdir(parents=True, exist_ok=True)
    started, limit_s = time.monotonic(), QUICK_PART_LIMIT_S if settings.quick else PART_LIMIT_S
    steps, result = chosen((part,), settings), new_result(part, machine.describe(ROOT, settings))
    print(f"part {part} on {machine.in_words(result['machine'])}", flush=True)
    for number, step in enumerate(steps, 1):
        left_s = limit_s - (time.monotonic() - started)
        print(f"[{time.monotonic() - started:5.0f} s] {number} of {len(steps)}: {step.name}: {step.says}", flush=True)
        add(result, step, run_in_time(step, settings, out / f"part-{part}.log", step.limit_s, left_s))
        keep(result, out)
    return say_end(result, started, out)


def run_at_once(parts, settings, out):
    """Runs the steps of the parts, several at the same time. The rows of each are printed after its end. Returns whether every step came to
    an end by itself."""
    out.mkdir(parents=True, exist_ok=True)
    began, printing = time.monotonic(), threading.Lock()
    steps = sorted(chosen(parts, settings), key=lambda step: AT_ONCE_ORDER.index(step.part))
    described = machine.describe(ROOT, settings)
    results = {part: new_result(part, described) for part in parts}
    print(f"{len(steps)} steps on {machine.in_words(described)}", flush=True)

    def run(step):
        left_s = AT_ONCE_LIMIT_S - (time.monotonic() - began)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as rows:
            told = run_in_time(step, settings, out / f"part-{step.part}-{step.name}.log", step.limit_s * lockstep.QUICK_PATIENCE, left_s, rows)
            rows.seek(0)
            with printing:
                print(f"[{time.monotonic() - began:5.0f} s] {step.part} {step.name}: {step.says}\n{rows.read()}", end="", flush=True)
                add(results[step.part], step, told)
                keep(results[step.part], out)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            list(pool.map(run, steps))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(RUNNING):
                end(child)
            raise
    return all([say_end(results[part], began, out) for part in parts])


def chosen(parts, settings):
    """The steps of these parts that were asked for."""
    return [step for step in STEPS if step.part in parts and step.name in (settings.only or [step.name])]


def new_result(part, described):
    """The result of a part whose steps have not begun."""
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return {"part": part, "machine": described, "started": started, "steps": [], "rows": [], "facts": []}


def add(result, step, told):
    """Adds what `run_step` returned, and a row if the step did not end by itself."""
    ended, rows, facts, took_s = told
    if ended:
        row = {"part": step.part, "step": step.name, "what": f"the step {step.name}", "verdict": sheet.FAILED, "found": "", "expected": "", "by": "", "note": ended}
        rows = [*rows, row]
        print(f"  {sheet.FAILED:13} the step {step.name}: {ended}", flush=True)
    result["steps"].append({"name": step.name, "seconds": round(took_s, 1), "ended": ended or "by itself"})
    result["rows"] += rows
    result["facts"] += facts


def say_end(result, started, out):
    """Prints the sums of a part. Returns whether every step came to an end by itself."""
    words = ", ".join(f"{sum(row['verdict'] == verdict for row in result['rows'])} {verdict}" for verdict in sheet.VERDICTS)
    print(f"part {result['part']}: {words}; {time.monotonic() - started:.0f} s; results in {out}", flush=True)
    return all(step["ended"] == "by itself" for step in result["steps"])


def run_in_time(step, settings, log_path, limit_s, left_s, output=None):
    """Runs the step if there is time left. Returns what `run_step` does."""
    if left_s < LEAST_S + GRACE_S:
        return "no time was left for it", [], [], 0.0
    return run_step(step, settings, log_path, min(limit_s, left_s - GRACE_S), output)


# The processes of steps.
RUNNING = set()


def run_step(step, settings, log_path, limit_s, output=None):
    """Returns why the step did not end by itself (empty if it did), its rows, its facts, its seconds. It prints its rows to `output`, or to
    the terminal."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"confirm-{step.name}-"))
    rows_path, started = folder / "rows.jsonl", time.monotonic()
    command = [*program(), str(step.part), "--step", step.name, "--folder", str(folder), *settings.arguments()]
    with open(log_path, "a", encoding="utf-8") as log:
        log.write(f"=== {step.name}\n")
        log.flush()
        # Other output of the step and its children goes to the log.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, cwd=ROOT, start_new_session=True, env=environment(settings, folder))
        RUNNING.add(child)
        try:
            code = child.wait(limit_s)
            ended = "" if code == 0 else f"it ended with {code}: {last_words(log_path)}"
        except subprocess.TimeoutExpired:
            ended = f"it took longer than {limit_s:.0f} s"
            end(child)
        except BaseException:
            end(child)
            raise
        finally:
            RUNNING.discard(child)
            end_leftovers(folder)
    rows, facts = sheet.read(rows_path)
    shutil.rmtree(folder, ignore_errors=True)
    return ended, rows, facts, time.monotonic() - started


def program():
    return [sys.executable, "-m", "checks"]


def environment(settings, folder):
    """Of a step. With simulated GPUs other NVML clients find the simulator too."""
    if not settings.simulate:
        return None
    (folder / "nvml").mkdir()
    (folder / "nvml/libnvidia-ml.so.1").symlink_to(settings.binary.resolve().with_name("libsim_nvml.so"))
    return {**os.environ, "LD_LIBRARY_PATH": str(folder / "nvml")}


def step_main(part, name, folder, settings):
    """In the step's own process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if settings.quick:
        lockstep.be_patient()
    module = importlib.import_module(f"checks.part{part}.{name}")
    report = sheet.Sheet(folder / "rows.jsonl", part, name)
    try:
        module.run(Check(report, folder, settings))
    except CannotStart as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # a failure of the step is a result too
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


class Check:
    """The parameters of a step: its sheet, its own folder, and the settings."""

    def __init__(self, report, folder, settings):
        self.sheet, self.folder, self.settings, self.root = report, folder, settings, ROOT
        self.quick = settings.quick

    def torch(self):
        """PyTorch, or `None` where it is not installed."""
        try:
            import torch
        except ImportError:
            return None
        return torch

    def cuda(self, what):
        """PyTorch with CUDA; else `None`, after a row that says so."""
        torch = self.torch()
        if torch is not None and torch.cuda.is_available():
            return torch
        self.sheet.not_available(what, "it needs PyTorch with CUDA" if torch else f"{sys.executable} has no PyTorch")
        return None


def end(child):
    """Ends the process group of a step: first with SIGTERM, so that it can stop what it has started."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 5)):
        try:
            os.killpg(child.pid, number)
            child.wait(wait_s)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def end_leftovers(folder):
    """Processes that were started with the step's folder in their arguments or environment: ranks outlive the agent by design."""
    needle = str(folder).encode()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if any(needle in (entry / file).read_bytes() for file in ("cmdline", "environ")):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


def last_words(log):
    """The last line that was logged."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing was logged"


def keep(result, out):
    """Writes the results so far. A reader never sees an incomplete file, even if several parts run at the same time."""
    path = out / f"part-{result['part']}.json"
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    beside.replace(path)
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("part-?.json"))]
    table_beside = out / f"table-{result['part']}.new"
    table_beside.write_text(table.markdown(parts), encoding="utf-8")
    table_beside.replace(out / "table.md")
