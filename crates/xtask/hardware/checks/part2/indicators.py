"""The five indicators with the dashboard's queries, bands and alerts, on a run that fills the GPU and on one that waits for data.

    memory                      nvidia-smi
    compute share               the phases of a step that the training times itself
    link use                    one rank sends to no other
    throughput                  the work is steady, so each second is as good as its best; samples per second beside the training's own steps
    waiting for gradient sync   one rank waits for no other; two that fill their GPUs wait for less than 5 % of a step
"""

import importlib.util
import json
import pathlib
import statistics
import time

from .. import machine
from ..lockstep import Lockstep, wait_for
from . import changes
from .changes import ON_A_CPU, NotAvailable

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "trainings" / "filling.py"
# The indicators of web/src/page/overview/indicators/table.rs: the band, and queries of which the first with an answer is shown; here from a run's
# first step on, while the page judges no run in its first minute.
CUDA_RANKS = 'and on (node, run, rank) train_info{device=~"cuda.*"}'
BUSY = "and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05"
INDICATORS = {
    "memory": ((0.7, 0.9), (f"avg(gpu_memory_used_bytes / gpu_memory_total_bytes {BUSY})", "avg(gpu_memory_used_bytes / gpu_memory_total_bytes)")),
    "compute": ((0.85, 1.0), (f"avg(train_compute_ratio {CUDA_RANKS})",)),
    "link": ((0.6, 0.8), (f'avg(link_utilization_ratio{{link="nvlink"}} {BUSY})', f'avg(link_utilization_ratio{{link="pcie"}} {BUSY})')),
    "throughput": ((0.8, 1.0), ("sum(train_samples_per_second) / sum(quantile_over_time(0.9, train_samples_per_second[10m]) and train_samples_per_second)",)),
    "sync": ((0.0, 0.05), (f"avg(train_sync_seconds / train_step_seconds {CUDA_RANKS})",)),
}
# Values that the dashboard shows for ranks on CPUs without judging them, and inputs of the indicators.
BESIDE = {
    "compute on a CPU": ("avg(train_compute_ratio)",),
    "sync on a CPU": ("avg(train_sync_seconds / train_step_seconds)",),
    "SM activity": ("max(gpu_sm_active_ratio)",),
    "samples per second": ("sum(train_samples_per_second)",),
}
QUERIES = {**{name: queries for name, (_, queries) in INDICATORS.items()}, **BESIDE}
FILL = 0.8
FULL = {"layers": 24, "hidden": 1024, "heads": 16, "vocabulary": 12288, "sequence": 1600, "batch": 8, "precision": "bf16-mixed", "fill": FILL}
WAITING = {"layers": 2, "hidden": 256, "heads": 4, "vocabulary": 1024, "sequence": 128, "batch": 8, "data-delay-ms": 100}
# Of the full run, with CUDA's context and what the allocator keeps.
NEEDED_BYTES = 22 << 30
# Both read NVML, nvidia-smi in MiB; context and ballast do not change while the run trains.
MEMORY_ABSOLUTE = 0.01
# Values of some seconds beside the median of the whole run; and beside what it did in its best ones. A CPU that others use too is less steady.
STEADY, STEADY_ON_CPU = 0.05, 0.2
# Of a run that gives the GPU work all the time, and of one that gives it some milliseconds in each 100.
SM_FULL_MIN, SM_WAITING_MAX = 0.5, 0.25
# Token numbers and launches: kilobytes per step.
LINK_IDLE_MAX = 0.05
START_S, SEEN_STEPS, SETTLE_S, WATCH_S, QUICK_WATCH_S, END_S = 50, 10, 5, 12, 2, 30
# `for: 30s` of DataLoadingSlow, and what an evaluation and a sample may be late. The whole step has 120 s.
FIRES_S, STEP_S = 40, 100
QUICK_PENDING_S = 6


def run(check):
    with Lockstep(check) as lockstep:
        both = Both(check, lockstep)
        # One after the other, but independent: a failure in the first affects no row of the second.
        changes.report(check.sheet, both, (Both.train_full, rows("full")))
        changes.report(check.sheet, both, (Both.train_waiting, rows("waiting")))
    for name, seen in both.seen.items():
        check.sheet.fact(name, seen.facts())


class Both:
    """Both runs, one after the other with the same collector."""

    def __init__(self, check, lockstep):
        self.check, self.lockstep, self.seen, self._began = check, lockstep, {}, time.monotonic()
        self._gpus = [gpu for gpu in lockstep.get("/api/gpus") if not gpu["simulated"]]

    def train_full(self):
        if self.check.quick:
            raise NotAvailable("a quick check trains once, with a run that waits")
        changes.need_gpu_memory(self.lockstep, NEEDED_BYTES)
        self.train("full", FULL, ranks=2 if len(self._gpus) > 1 else 1)

    def train_waiting(self):
        self.train("waiting", WAITING, awaited="pending" if self.check.quick else "firing")

    def train(self, name, sizes, ranks=1, awaited=None):
        if importlib.util.find_spec("torch") is None:
            raise NotAvailable("this Python has no PyTorch")
        args = ["--cpu-small", "--log-every", "0", *changes.options(sizes)]
        run = self.lockstep.submit(name=name, script=str(SCRIPT), args=args, nproc_per_node=ranks)
        seen = Seen(self.lockstep, run, ranks, awaited)
        try:
            self.watch(seen)
        finally:
            self.lockstep.command("run", "stop", run, "--grace", "20s", "--wait", limit_s=END_S)
        seen.own = wait_for(seen.last_line, END_S, "the last line of the training")
        self.seen[name] = seen

    def watch(self, seen):
        self.lockstep.wait_for_step(seen.run, SEEN_STEPS, START_S)
        time.sleep(0 if self.check.quick else SETTLE_S)
        seen.watch(QUICK_WATCH_S if self.check.quick else WATCH_S)
        if seen.awaited:
            self.wait_for_alert(seen)
        seen.alerts = alerts(self.lockstep, seen.run)

    def wait_for_alert(self, seen):
        limit_s = QUICK_PENDING_S if self.check.quick else min(FIRES_S, self._began + STEP_S - time.monotonic())
        try:
            wait_for(lambda: alerts(self.lockstep, seen.run).get("DataLoadingSlow") == seen.awaited, limit_s, "DataLoadingSlow")
        except TimeoutError:
            return  # the row tells what it is instead


class Seen:
    """Values of a run while it trained, and its own measurements."""

    def __init__(self, lockstep, run, ranks, awaited):
        self.lockstep, self.run, self.ranks, self.awaited = lockstep, run, ranks, awaited
        self.readings = {name: [] for name in (*QUERIES, "nvidia-smi")}
        self.alerts, self.own = {}, None

    def watch(self, seconds):
        """Once a second, all values."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            found = {name: first_answer(self.lockstep, queries) for name, queries in QUERIES.items()}
            for name, value in {**found, "nvidia-smi": memory_in_use()}.items():
                if value is not None:
                    self.readings[name].append(value)
            time.sleep(max(0.0, 1 - (time.monotonic() - began)))

    def value(self, name):
        """Returns the median of the values; `None` if there were none."""
        return statistics.median(self.readings[name]) if self.readings[name] else None

    def last_line(self):
        lines = self.lockstep.get(f"/api/runs/{self.run}/logs?rank=0&stream=stdout")["text"].splitlines()
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None

    @property
    def on_gpu(self):
        return self.own["device"] != "cpu"

    def need_gpu(self):
        if not self.on_gpu:
            raise NotAvailable(ON_A_CPU)

    @property
    def steady(self):
        return STEADY if self.on_gpu else STEADY_ON_CPU

    @property
    def compute_share(self):
        return sum(self.own[f"{phase}_s"] for phase in ("forward", "backward", "optimizer")) / self.own["step_s"]

    def facts(self):
        return {"readings": self.readings, "alerts": self.alerts, "own": self.own, "ranks": self.ranks}


def first_answer(lockstep, queries):
    return next((value for query in queries if (value := lockstep.value(query)) is not None), None)


def memory_in_use():
    """Returns the mean share of memory of busy GPUs from nvidia-smi; of all GPUs if none is busy."""
    lines = machine.nvidia_smi("memory.used,memory.total,utilization.gpu")
    found = [[float(cell) for cell in line] for line in lines if all(cell.isdecimal() for cell in line)]
    shares = [used / total for used, total, percent in found if percent > 5] or [used / total for used, total, _ in found]
    return statistics.fmean(shares) if shares else None


def alerts(lockstep, run):
    """State by name, of alerts about the run and of the indicators."""
    found = [alert for alert in lockstep.alerts() if alert["labels"].get("run") == run or "indicator" in alert["labels"]]
    return {alert["rule"]: alert["state"] for alert in found}


def place(indicator, value):
    """The dashboard's word."""
    low, high = INDICATORS[indicator][0]
    return "no value" if value is None else "below" if value < low else "above" if value > high and high < 1 else "healthy"


# === Rows: `row(sheet, what, seen)` ===


def rows(name):
    about = {"full": "a run that fills the GPU", "waiting": "a run that waits for data"}[name]
    rows = {**ROWS, **{"full": FULL_ROWS, "waiting": WAITING_ROWS}[name]}
    return {f"{about}: {what}": of(name, row) for what, row in rows.items()}


def of(name, row):
    return lambda sheet, what, both: row(sheet, what, both.seen[name])


def memory(sheet, what, seen):
    seen.need_gpu()
    sheet.compare(what, seen.value("memory"), seen.value("nvidia-smi"), absolute=MEMORY_ABSOLUTE, unit="%", reference="nvidia-smi")


def memory_band(sheet, what, seen):
    seen.need_gpu()
    in_use = seen.value("nvidia-smi")
    if in_use is None:
        raise NotAvailable("nvidia-smi has no value")
    sheet.equal(what, place("memory", seen.value("memory")), place("memory", in_use), f"nvidia-smi: {100 * in_use:.1f} %")


def compute(sheet, what, seen):
    found = seen.value("compute" if seen.on_gpu else "compute on a CPU")
    sheet.compare(what, found, seen.compute_share, absolute=seen.steady, unit="%", reference="the training's own medians")


def compute_band(sheet, what, seen):
    # A run on CPUs is not judged: the query for GPUs has no answer.
    expected = place("compute", seen.compute_share) if seen.on_gpu else "no value"
    sheet.equal(what, place("compute", seen.value("compute")), expected, f"the training's own medians: {100 * seen.compute_share:.1f} %")


def link(sheet, what, seen):
    seen.need_gpu()
    if seen.ranks > 1:
        raise NotAvailable("two ranks communicate; part 3 compares links")
    sheet.between(what, seen.value("link"), 0, LINK_IDLE_MAX, "%", "one rank")


def throughput(sheet, what, seen):
    # A GPU that comes to its power limit loses some per cent of the first seconds' clock.
    sheet.compare(what, seen.value("throughput"), 1.0, absolute=2 * seen.steady, unit="%", reference="steady work")


def throughput_band(sheet, what, seen):
    sheet.equal(what, place("throughput", seen.value("throughput")), "healthy", "steady work")


def samples(sheet, what, seen):
    expected = seen.ranks * seen.own["samples_per_s"]
    sheet.compare(what, seen.value("samples per second"), expected, relative=seen.steady, unit="1/s", reference="the training's own median")


def sync(sheet, what, seen):
    found = seen.value("sync" if seen.on_gpu else "sync on a CPU")
    if seen.ranks > 1:
        sheet.equal(what, place("sync", found), "healthy", f"{seen.ranks} ranks with a large step: {found}")
    else:
        sheet.holds(what, found is None, "no value" if found is None else found, "no value: one rank waits for no other")


def sm_activity(low, high):
    def row(sheet, what, seen):
        seen.need_gpu()
        sheet.between(what, seen.value("SM activity"), low, high, "%", "GPM")

    return row


def data_alert(sheet, what, seen):
    # It holds from the first samples on, and fires after 30 s, for which a quick check does not wait.
    sheet.equal(what, seen.alerts.get("DataLoadingSlow", "none"), seen.awaited)


def compute_alert(sheet, what, seen):
    # On GPUs the share is below the band, for less than the minute after which it fires; on CPUs a steady run is what it was. A symptom is
    # silent once its cause fires.
    is_cause_named = seen.alerts.get("DataLoadingSlow") == "firing"
    sheet.equal(what, seen.alerts.get("ComputeShareLow", "none"), "pending" if seen.on_gpu and not is_cause_named else "none")


def no_alerts(*others):
    def row(sheet, what, seen):
        found = sorted(f"{name} {state}" for name, state in seen.alerts.items() if name not in others)
        sheet.equal(what, ", ".join(found) or "none", "none")

    return row


ROWS = {
    "memory": memory,
    "memory, band": memory_band,
    "compute share": compute,
    "compute share, band": compute_band,
    "link use": link,
    "throughput, of its own best": throughput,
    "throughput, band": throughput_band,
    "samples per second": samples,
    "waiting for gradient sync": sync,
}
FULL_ROWS = {"SM activity": sm_activity(SM_FULL_MIN, 1), "alerts": no_alerts()}
WAITING_ROWS = {
    "SM activity": sm_activity(0, SM_WAITING_MAX),
    "DataLoadingSlow": data_alert,
    "ComputeShareLow": compute_alert,
    "other alerts": no_alerts("DataLoadingSlow", "ComputeShareLow"),
}
