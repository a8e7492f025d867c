"""NCCL, beside a script that counts its own collectives and times them by CUDA events.

The recipes `ddp` and `fsdp` on all GPUs: how they end, their backend, what Lockstep says of nccl-probe. `collectives.py`: calls and bytes of each function,
kernel times and bus bandwidth of large messages (from two GPUs on), step times with and without nccl-probe in turns. NCCL RAS.
A communicator of one rank runs no kernels: NCCL copies at most, and tells its profilers nothing. PyTorch's profiler says whether that is so here.
"""

import math
import re
import socket
import statistics
import time

from ..lockstep import Lockstep
from .training import gpus, ranks_of, reported, result, script, within

CPU_RANKS, QUICK_RANKS = 2, 1
RUN_S = 60
# Samples of a run that has ended; longer than any run here.
BACK_S = 300
# Long enough for some datagrams of nccl-probe, which come once per second.
RECIPES = {"ddp": {"steps": "200", "step_delay_ms": "20"}, "fsdp": {"steps": "60", "step_delay_ms": "20"}}
SMALL_RECIPES = {"ddp": {"steps": "3"}, "fsdp": {"steps": "2", "compare_steps": "0", "layers": "2"}}
# About 5 ms per step on a Hopper GPU, with eight collectives of 4 MiB in it.
STEPS = ["--steps", "600", "--size", "1024", "--layers", "8", "--batch", "4096"]
FUNCTIONS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")
# With nccl-probe or without. In this order a slow drift of the machine counts for both alike.
TURNS = (True, False, True)
# Medians of 600 steps differ by about a hundredth between runs of the same kind; nccl-probe is made to cost less than that.
COST_TOLERANCE = 0.02
# An event is recorded a few microseconds from the kernel, and the kernels of one second are averaged; messages take milliseconds.
TIME_TOLERANCE = 0.1
# The profiler interface of each release, by NVIDIA's nccl/plugins/profiler.
INTERFACES = {(2, 23): 1, (2, 24): 2, (2, 25): 2, (2, 26): 3, (2, 27): 4, (2, 28): 5, (2, 29): 6, (2, 30): 6, (2, 31): 7, (2, 32): 7}
# The agent asks NCCL RAS for the first time a minute after the start of a run, of which the first steps have taken some seconds already.
RAS_WITHIN_S = 62
# Later than this the step's time would be over before NCCL RAS is asked.
RAS_BEGINS_BY_S = 75
RAS_ADDRESS = ("127.0.0.1", 28028)
NO_GPU = "it needs a GPU"
NO_PEER = "NCCL refuses two ranks on one GPU, so it needs two GPUs"


def run(check):
    began, ranks = time.monotonic(), gpus() or (QUICK_RANKS if check.quick else CPU_RANKS)
    recipes = SMALL_RECIPES if check.quick or not gpus() else RECIPES
    with Lockstep(check) as lockstep:
        # A node with GPUs takes one run at a time: the second waits for the first.
        runs = {name: lockstep.submit(recipe=name, set=settings, nproc_per_node=ranks, nccl_probe=True) for name, settings in recipes.items()}
        for name, asked in runs.items():
            with reported(check.sheet, f"recipe {name}: ends as"):
                recipe(check.sheet, lockstep, name, asked)
        with reported(check.sheet, "collectives.py: it ends as"):
            counts_and_cost(check, lockstep, ranks)
        with reported(check.sheet, "collectives.py: seconds of a large AllReduce"):
            large(check, lockstep, ranks)
        with reported(check.sheet, "NCCL RAS: communicators"):
            ras(check.sheet, lockstep, ranks, time.monotonic() - began)


# === the recipes ===


def recipe(sheet, lockstep, name, asked):
    found = lockstep.wait_for_end(asked, RUN_S)
    sheet.equal(f"recipe {name}: ends as", found["state"], "succeeded")
    output = lockstep.output(asked)
    if found["state"] != "succeeded":
        sheet.fact(f"recipe {name}: output", [found.get("outcome"), output[-2000:]])
    device = re.search(r"parameters on (?:\d+ x )?(\w+)", output)
    cuda = device is not None and device.group(1) == "cuda"
    sheet.equal(f"recipe {name}: trains on", device.group(1) if device else "nothing", "cuda" if gpus() else "cpu")
    backends = {labels["backend"] for labels, _ in lockstep.samples(f'train_info{{run="{asked}"}}', BACK_S) if "backend" in labels}
    sheet.equal(f"recipe {name}: backend", ", ".join(sorted(backends)), "nccl" if cuda else "gloo", "the recipe's own choice")
    states = probe_states(lockstep, asked)
    sheet.equal(f"recipe {name}: nccl_probe_state", states[-1] if states else "none", "reporting" if cuda else "waiting", "whether NCCL is used")
    sheet.fact(f"recipe {name}: collectives", last_values(lockstep, "nccl_collectives_total", asked))


def probe_states(lockstep, run):
    """In the order in which Lockstep gave them."""
    found = lockstep.samples(f'nccl_probe_state{{run="{run}"}}', BACK_S)
    return [labels["state"] for labels, values in sorted(found, key=lambda series: series[1][0][0])]


def last_values(lockstep, metric, run):
    """`(labels, last value)` of each series of a run that may have ended."""
    return [(labels, values[-1][1]) for labels, values in lockstep.samples(f'{metric}{{run="{run}"}}', BACK_S)]


def by_function(lockstep, metric, run):
    """Sums over ranks and communicators."""
    sums = {}
    for labels, value in last_values(lockstep, metric, run):
        sums[labels["function"]] = sums.get(labels["function"], 0) + value
    return sums


# === a script that counts ===


def counts_and_cost(check, lockstep, ranks):
    sheet = check.sheet
    if not gpus():
        return no_counts(sheet, NO_GPU)
    step_s = {True: [], False: []}
    for probed in TURNS:
        asked, results = collectives(check, lockstep, ranks, probed, STEPS + ["--others"])
        if probed and not step_s[True]:
            with reported(sheet, "collectives.py: calls of AllReduce"):
                counts(sheet, lockstep, asked, results)
        step_s[probed].append(results[0]["step_s"])
    sheet.fact("step times with and without nccl-probe", [step_s[True], step_s[False]])
    cost = statistics.mean(step_s[True]) / statistics.mean(step_s[False]) - 1
    return sheet.between("collectives.py: cost of nccl-probe in a step", cost, -COST_TOLERANCE, COST_TOLERANCE, "%")


def no_counts(sheet, why):
    totals = [f"{measure} of {function}" for measure in ("calls", "bytes") for function in FUNCTIONS]
    loaded = ("it ends as", "NCCL has loaded nccl-probe", "nccl_probe_state", "version of NCCL", "profiler interface")
    for what in (*loaded, *totals, "events lost", "cost of nccl-probe in a step"):
        sheet.not_available(f"collectives.py: {what}", why)


def collectives(check, lockstep, ranks, probed, arguments, env=None):
    """A run of the script that has succeeded, and what each of its ranks printed."""
    run = lockstep.submit(script=script(check, "collectives"), args=arguments, nproc_per_node=ranks, nccl_probe=probed, env=env or {})
    found = lockstep.wait_for_end(run, RUN_S)
    if found["state"] != "succeeded":
        raise RuntimeError(f"it ended as {found['state']}: {found.get('outcome')}; {lockstep.last_output(run)}")
    return run, [result(lockstep, run, rank["rank"]) for rank in ranks_of(found)]


def counts(sheet, lockstep, run, results):
    first = results[0]
    sheet.fact("collectives.py", results)
    sheet.equal("collectives.py: it ends as", lockstep.run(run)["state"], "succeeded")
    mapped = sum(said["plugin_mapped"] for said in results)
    sheet.equal("collectives.py: NCCL has loaded nccl-probe", f"into {mapped} ranks", f"into {len(results)} ranks", "the memory maps of the ranks")
    states = probe_states(lockstep, run)
    sheet.equal("collectives.py: nccl_probe_state", states[-1] if states else "none", "reporting", "NCCL is used")
    known = [labels for labels, _ in lockstep.samples(f'nccl_info{{run="{run}"}}', BACK_S)]
    version = tuple(map(int, first["nccl"].split(".")))
    # Where NCCL runs no kernel there is nothing that it could tell.
    runs_kernels = first["ranks"] > 1 or first["nccl_kernels"] > 0
    silent = None if not runs_kernels else "nothing"
    sheet.equal("collectives.py: version of NCCL", told(known, "version") or silent, first["nccl"], "torch.cuda.nccl.version()")
    sheet.equal("collectives.py: profiler interface", told(known, "abi") or silent, str(INTERFACES.get(version[:2], "unknown")), "NCCL's releases")
    for measure, metric in (("calls", "nccl_collectives_total"), ("bytes", "nccl_bytes_total")):
        found = by_function(lockstep, metric, run)
        sheet.fact(metric, found)
        for function in FUNCTIONS:
            own = sum(said[measure].get(function, 0) for said in results)
            reference = "the script's own count" if runs_kernels else f"NCCL runs no kernel; the script counts {own}"
            unit = "B" if measure == "bytes" else ""
            sheet.compare(f"collectives.py: {measure} of {function}", found.get(function, 0), own if runs_kernels else 0, unit=unit, reference=reference)
    lost = last_values(lockstep, "nccl_events_dropped_total", run)
    sheet.equal("collectives.py: events lost", sum(value for _, value in lost) if lost else None, 0)


def told(series, label):
    return ", ".join(sorted({labels[label] for labels in series}))


def large(check, lockstep, ranks):
    """Messages of a size at which times of kernels are those of the links, on a communicator of their own."""
    rows = [f"collectives.py: {what} of a large AllReduce" for what in ("seconds", "bus bandwidth")]
    if gpus() < 2:
        for row in rows:
            check.sheet.not_available(row, NO_PEER if gpus() else NO_GPU)
        return
    run, results = collectives(check, lockstep, ranks, True, ["--steps", "20", "--large"], {"LOCKSTEP_NCCL_TIMING": "always"})
    first = results[0]
    calls = {labels["comm"]: value for labels, value in last_values(lockstep, "nccl_collectives_total", run) if labels["rank"] == "0"}
    comm = next(name for name, value in calls.items() if value == first["large_calls"])
    seconds, bandwidths = (of_large(lockstep, metric, run, comm) for metric in ("nccl_collective_seconds", "nccl_bus_bandwidth_bytes_per_second"))
    bus_bytes = 2 * (first["ranks"] - 1) / first["ranks"] * first["large_bytes"]
    check.sheet.compare(rows[0], seconds, first["large_s"], relative=TIME_TOLERANCE, unit="s", reference="CUDA events")
    check.sheet.compare(rows[1], bandwidths, bus_bytes / first["large_s"], relative=TIME_TOLERANCE, unit="B/s", reference="bytes and CUDA events")


def of_large(lockstep, metric, run, comm):
    found = lockstep.samples(f'{metric}{{run="{run}",comm="{comm}"}}', BACK_S)
    return statistics.median([value for _, values in found for _, value in values]) if found else None


# === NCCL RAS ===


def ras(sheet, lockstep, ranks, elapsed_s):
    """The recipe `ddp` has one communicator with all of its ranks."""
    expected = {"communicators": 1, "ranks": ranks, "missing_ranks": 0, "failed_ranks": 0}
    why = NO_GPU if not gpus() else "no time was left in this step" if elapsed_s > RAS_BEGINS_BY_S else ""
    said, found = "", {}
    if not why:
        run = lockstep.submit(recipe="ddp", set={"steps": "100000", "step_delay_ms": "50"}, nproc_per_node=ranks, nccl_ras=True)
        lockstep.wait_for_step(run, 5, RUN_S)
        said = ask_ras()
        sheet.fact("NCCL RAS, as it answers", said[:8000])
        why = "" if "{" in said else f"NCCL RAS gives no JSON, which it does from 2.28.7 on: {said[:200]}"
    if not why:
        within(RAS_WITHIN_S, lambda: lockstep.query(f'nccl_ras_communicators{{run="{run}"}}'))
        found = {name: lockstep.value(f'nccl_ras_{name}{{run="{run}"}}') for name in expected}
    for name, value in expected.items():
        what = f"NCCL RAS: {name.replace('_', ' ')}"
        if why:
            sheet.not_available(what, why)
        else:
            sheet.compare(what, math.nan if found[name] is None else found[name], value, reference="the recipe")


def ask_ras():
    """What NCCL RAS itself answers, or why not."""
    try:
        with socket.create_connection(RAS_ADDRESS, 5) as connection:
            connection.settimeout(15)
            lines = connection.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
            for line in ("client protocol 2", "timeout 5", "set format json"):
                print(line, file=lines, flush=True)
                answer = lines.readline().strip()
            if answer.upper() != "OK":
                return answer
            print("status", file=lines, flush=True)
            return lines.read()
    except OSError as error:
        return f"it does not answer: {error}"
