"""Compares Lockstep's samples of a training's steps with the training's own measurements and with NVIDIA's tools.

    phases of a step         CUDA events of the script (the host's clock on a CPU), and for some steps the kernels that torch.profiler records
    memory                   the allocator's statistics, read by the script
    loss, gradient norm      computed by the script
    process and its memory   nvidia-smi --query-compute-apps, and the pid that the script has
"""

import functools
import importlib.util
import json
import math
import pathlib
import platform
import statistics
import subprocess
import time

from ..lockstep import Lockstep, wait_for

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "trainings" / "profiled.py"
# The first steps allocate, choose kernels and fill caches: they are longer, but not by the same in both places.
WARMUP_STEPS = 5
PROFILE_AFTER, PROFILE_STEPS = 10, 6
# The probe reads the allocator in the same steps: 1, 11, 21, …
MEMORY_EVERY = 10
NORM_EVERY = 8
# Between the script's marks and the probe's lie calls of a few microseconds, which a busy host may take a time slice longer for.
CLOCK_RELATIVE, CLOCK_ABSOLUTE_S = 0.02, 0.0003
# The profiler says when kernels end; an event is recorded some microseconds later. Its converted clock drifts by less than 100 µs.
PROFILER_RELATIVE, PROFILER_ABSOLUTE_S = 0.05, 0.0005
# A loss is a 32-bit number in both places; norms are added up in 32 bits by the probe and in 64 by the script.
LOSS_RELATIVE, NORM_RELATIVE = 1e-6, 1e-4
# A piece of the allocator for small tensors, in which the scalars that the probe keeps may lie.
PIECE_BYTES = 2 << 20
# nvidia-smi rounds to MiB, and the training continues between the two readings.
PROCESS_BYTES = 4 << 20
# A sample has the time at which the probe recorded the end of the step; the script reads its clock a few calls later.
STAMP_S = 0.05
PHASES = {
    "train_step_seconds": "step_s",
    "train_data_seconds": "data_s",
    "train_forward_seconds": "forward_s",
    "train_backward_seconds": "backward_s",
    "train_optimizer_seconds": "optimizer_s",
}
# Processes are read every ten seconds.
PROCESSES_S = 25
LATEST_SAMPLES_S = 10
ON_A_CPU = "the training runs on a CPU"


def run(check):
    if importlib.util.find_spec("torch") is None:
        for what in ROWS:
            check.sheet.not_available(what, "this Python has no PyTorch")
        return
    with Lockstep(check) as lockstep:
        seen = observe(check, lockstep)
    for what, row in ROWS.items():
        try:
            row(check.sheet, what, seen)
        except Exception as error:  # the other rows do not need this one
            check.sheet.failed(what, f"{type(error).__name__}: {error}")
    check.sheet.fact("the script's own medians", {name: value for name, value in seen.own.items() if name not in ("each_step", "profiled")})
    check.sheet.fact("profiled steps", seen.own["profiled"])
    check.sheet.fact("single samples, largest relative difference", {series: seen.largest_difference(series) for series in PHASES})


def observe(check, lockstep):
    """Trains, reads the process meanwhile, stops, and reads the stored samples."""
    result, began = check.folder / "result.json", time.time()
    gpus = lockstep.node["inventory"].get("gpus", [])
    run = lockstep.submit(name="probe", script=str(SCRIPT), args=arguments(gpus, result))
    lockstep.wait_for_step(run, 24 if check.quick else 200, limit_s=75)
    infos = [labels for labels, _ in lockstep.query(f'train_info{{run="{run}",rank="0"}}')]
    on_gpu = any(labels.get("device", "").startswith("cuda") for labels in infos)
    process = look_at_process(lockstep, run) if on_gpu else None
    lockstep.command("run", "stop", run, "--grace", "25s", "--wait", limit_s=40)
    own = json.loads(result.read_text(encoding="utf-8"))
    selector = f'{{run="{run}",rank="0"}}'

    def stored():
        series = {labels["__name__"]: dict(values) for labels, values in lockstep.samples(selector, time.time() - began + 5)}
        return series if max(series.get("train_step", {0: 0}).values()) >= own["steps"] else None

    return Seen(own, wait_for(stored, LATEST_SAMPLES_S, "the sample of the last step"), infos[-1] if infos else {}, process, gpus)


def arguments(gpus, result):
    # The batch fills a GPU of this machine: about 20 GiB of it, or 6 GiB.
    batch = 16 if min((gpu["memory_total_bytes"] for gpu in gpus), default=0) > 30 << 30 else 4
    sizes = ["--cpu-small", "--layers", 12, "--hidden", 1024, "--sequence", 1024, "--batch", batch, "--precision", "bf16-mixed"]
    measures = ["--norm-every", NORM_EVERY, "--memory-every", MEMORY_EVERY, "--profile-after", PROFILE_AFTER, "--profile-steps", PROFILE_STEPS]
    return [str(argument) for argument in [*sizes, *measures, "--warmup", WARMUP_STEPS, "--result", result]]


def look_at_process(lockstep, run):
    """Returns the processes on GPUs according to Lockstep and nvidia-smi at the same time."""

    def processes():
        found = lockstep.query("gpu_process_memory_bytes")
        return found if any(value > 1 << 30 for _, value in found) else None

    try:
        memory = wait_for(processes, PROCESSES_S, "a process with GPU memory")
    except TimeoutError:
        memory = lockstep.query("gpu_process_memory_bytes")
    return {
        "memory": memory,
        "counts": {labels["gpu"]: value for labels, value in lockstep.query("gpu_processes")},
        "assignments": [labels for labels, _ in lockstep.query(f'gpu_assignment_info{{run="{run}"}}')],
        "apps": compute_apps(),
    }


def compute_apps():
    """`(pid, bytes, uuid)` of each process that nvidia-smi shows; `None` where it does not work."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if asked.returncode != 0:
        return None
    lines = [[cell.strip() for cell in line.split(",")] for line in asked.stdout.splitlines() if line.count(",") == 2]
    return [(int(pid), int(mib) << 20 if mib.isdecimal() else None, uuid) for pid, mib, uuid in lines]


class Seen:
    """A training by its own record and by Lockstep's samples, of which each is of one step or of several that came within a second."""

    def __init__(self, own, series, info, process, gpus):
        self.own, self.series, self.info, self.process, self.gpus = own, series, info, process, gpus
        self.steps = {step["step"]: step for step in own["each_step"]}
        self.on_gpu = own["device"] != "cpu"
        ends = sorted((at, round(step)) for at, step in series["train_step"].items())
        starts = [0, *(step for _, step in ends)]
        self.pools = [(at, range(before + 1, last + 1)) for before, (at, last) in zip(starts, ends)]

    @property
    def clock(self):
        return "CUDA events of the script" if self.on_gpu else "the script's clock"

    def pairs(self, series, key, usable=lambda steps: True):
        """Of each sample after the warm-up: its value, and the mean of the script's values in the same steps."""
        found = []
        for at, steps in self.pools:
            values = [self.steps.get(step, {}).get(key) for step in steps]
            if steps[0] > WARMUP_STEPS and at in self.series.get(series, {}) and None not in values and usable(steps):
                found.append((self.series[series][at], statistics.fmean(values)))
        return found

    def singles(self, name):
        """Step to value, of samples of one step."""
        return {steps[0]: self.series[name][at] for at, steps in self.pools if len(steps) == 1 and at in self.series.get(name, {})}

    def largest_difference(self, series):
        return max((abs(told - own) / own for told, own in self.pairs(series, PHASES[series]) if own > 0), default=None)

    def rank_on_gpu(self):
        """The index of the script's GPU by its UUID, as NVML counts."""
        uuid = self.own["gpu_uuid"].removeprefix("GPU-")
        return next((str(gpu["index"]) for gpu in self.gpus if gpu["uuid"].removeprefix("GPU-") == uuid), None)


# === Rows: phases ===


def phase(series, sheet, what, seen):
    profiled = {step["step"] for step in seen.own["profiled"]}
    pairs = seen.pairs(series, PHASES[series], lambda steps: profiled.isdisjoint(steps))
    found, expected = medians(pairs)
    sheet.compare(what, found, expected, relative=CLOCK_RELATIVE, absolute=CLOCK_ABSOLUTE_S, unit="s", reference=seen.clock)


def medians(pairs):
    return [statistics.median(side) for side in zip(*pairs)] or [None, None]


def profiled(series, sheet, what, seen):
    told, key = seen.singles(series), PHASES[series]
    pairs = [(told[step["step"]], step[key]) for step in seen.own["profiled"][1:] if step["step"] in told and key in step]
    if not pairs:
        return sheet.not_available(what, "torch.profiler recorded no step that is a sample of its own")
    found, expected = (statistics.fmean(side) for side in zip(*pairs))
    return sheet.compare(what, found, expected, relative=PROFILER_RELATIVE, absolute=PROFILER_ABSOLUTE_S, unit="s", reference="torch.profiler")


def rate(series, count, sheet, what, seen):
    pairs = [(told, seen.own[count] / step_s) for told, step_s in seen.pairs(series, "step_s")]
    found, expected = medians(pairs)
    sheet.compare(what, found, expected, relative=CLOCK_RELATIVE, unit="/s", reference=f"batch and {seen.clock}")


# === Rows: what is learned ===


def losses(sheet, what, seen):
    told = [(seen.series["train_loss"].get(at), seen.steps[steps[-1]]["loss"]) for at, steps in seen.pools if steps[-1] in seen.steps]
    largest_of(sheet, what, [(found, own) for found, own in told if found is not None], LOSS_RELATIVE)


def norms(sheet, what, seen):
    told = seen.singles("train_grad_norm")
    largest_of(sheet, what, [(told[step], own["grad_norm"]) for step, own in seen.steps.items() if "grad_norm" in own and step in told], NORM_RELATIVE)


def largest_of(sheet, what, pairs, limit):
    """A row of the pair that differs most."""
    if not pairs:
        return sheet.not_available(what, "no step has both values")
    differences = [abs(found - own) / max(abs(own), 1e-30) for found, own in pairs]
    return sheet.between(what, max(differences), -math.inf, limit, note=f"{len(pairs)} steps")


# === Rows: steps and their time ===


def last_step(sheet, what, seen):
    sheet.equal(what, round(max(seen.series["train_step"].values())), seen.own["steps"], "the script")


def stamps(sheet, what, seen):
    distances = [abs(at - seen.steps[steps[-1]]["at"]) for at, steps in seen.pools if steps[-1] in seen.steps]
    sheet.between(what, max(distances), -math.inf, STAMP_S, unit="s", note="the script's clock after each step")


def dropped(sheet, what, seen):
    sheet.equal(what, max(seen.series.get("train_probe_dropped_total", {0: None}).values()), 0.0)


def info(sheet, what, seen):
    found = [seen.info.get(name) for name in ("device", "torch", "python")]
    sheet.equal(what, found, [seen.own["device"], seen.own["torch"], platform.python_version()], "the script")


# === Rows: memory of a GPU ===


def peak(series, key, sheet, what, seen):
    if not seen.on_gpu:
        return sheet.not_available(what, ON_A_CPU)
    found = max(seen.series.get(series, {0: None}).values())
    return sheet.compare(what, found, seen.own[key], absolute=PIECE_BYTES, unit="B", reference="torch.cuda.memory_stats")


def split(sheet, what, seen):
    if not seen.on_gpu:
        return sheet.not_available(what, ON_A_CPU)
    told = seen.singles("train_memory_split_bytes")
    pairs = [(told[step], own["split_bytes"]) for step, own in seen.steps.items() if "split_bytes" in own and step in told]
    found, expected = max(pairs, key=lambda pair: abs(pair[0] - pair[1]), default=(None, None))
    return sheet.compare(what, found, expected, absolute=PIECE_BYTES, unit="B", reference="torch.cuda.memory_stats")


def retries(sheet, what, seen):
    if not seen.on_gpu:
        return sheet.not_available(what, ON_A_CPU)
    found = max(seen.series.get("train_memory_alloc_retries_total", {0: None}).values())
    return sheet.equal(what, found, float(seen.own["alloc_retries"]), "torch.cuda.memory_stats")


# === Rows: the process ===


def with_process(row):
    """For rows that need the rank's process in nvidia-smi's list."""

    @functools.wraps(row)
    def look(sheet, what, seen):
        if not seen.on_gpu:
            return sheet.not_available(what, ON_A_CPU)
        apps = seen.process["apps"]
        if apps is None:
            return sheet.not_available(what, "nvidia-smi does not work here")
        if seen.own["pid"] not in [pid for pid, _, _ in apps]:
            return sheet.not_available(what, f"nvidia-smi shows {apps}, and not the training's pid {seen.own['pid']}: a container with pids of its own")
        return row(sheet, what, seen)

    return look


def assignment(sheet, what, seen):
    if not seen.on_gpu:
        return sheet.not_available(what, ON_A_CPU)
    found = sorted(labels["gpu"] for labels in seen.process["assignments"] if labels.get("rank") == "0")
    return sheet.equal(what, found, [seen.rank_on_gpu()], "the UUID of the script's device")


@with_process
def process_memory(sheet, what, seen):
    found = [value for labels, value in seen.process["memory"] if labels["pid"] == str(seen.own["pid"])]
    expected = [size for pid, size, _ in seen.process["apps"] if pid == seen.own["pid"]]
    return sheet.compare(what, found[0] if found else None, expected[0], absolute=PROCESS_BYTES, unit="B", reference="nvidia-smi")


@with_process
def process_beyond_allocator(sheet, what, seen):
    """What the process holds is what the allocator holds, CUDA's context and loaded kernels: some hundred MiB."""
    found = [value for labels, value in seen.process["memory"] if labels["pid"] == str(seen.own["pid"])]
    beyond = found[0] - seen.own["max_reserved_bytes"] if found else None
    return sheet.between(what, beyond, 100 << 20, 2 << 30, unit="B", note="the allocator's peak of reserved memory")


@with_process
def process_name(sheet, what, seen):
    found = [labels.get("process") for labels, _ in seen.process["memory"] if labels["pid"] == str(seen.own["pid"])]
    agrees = bool(found) and found[0].startswith(("python", "pt_main_thread"))
    return sheet.holds(what, agrees, found[0] if found else "no such pid", "the name of a Python process")


@with_process
def processes(sheet, what, seen):
    gpu = seen.rank_on_gpu()
    expected = sum(uuid.removeprefix("GPU-") == seen.own["gpu_uuid"].removeprefix("GPU-") for _, _, uuid in seen.process["apps"])
    return sheet.equal(what, seen.process["counts"].get(gpu), float(expected), "nvidia-smi")


ROWS = {
    **{f"{series}: median": functools.partial(phase, series) for series in PHASES},
    **{f"{series}: steps that torch.profiler recorded": functools.partial(profiled, series) for series in PHASES},
    "train_samples_per_second: median": functools.partial(rate, "train_samples_per_second", "samples"),
    "train_tokens_per_second: median": functools.partial(rate, "train_tokens_per_second", "tokens"),
    "train_memory_allocated_bytes: peak": functools.partial(peak, "train_memory_allocated_bytes", "max_allocated_bytes"),
    "train_memory_reserved_bytes: peak": functools.partial(peak, "train_memory_reserved_bytes", "max_reserved_bytes"),
    "train_memory_split_bytes: the step that differs most": split,
    "train_memory_alloc_retries_total": retries,
    "train_loss: largest relative difference": losses,
    "train_grad_norm: largest relative difference": norms,
    "train_step: the last one": last_step,
    "train_step: largest distance of a sample's time": stamps,
    "train_probe_dropped_total": dropped,
    "train_info: device, torch and python": info,
    "gpu_assignment_info: the GPU of rank 0": assignment,
    "gpu_process_memory_bytes: the rank's process": process_memory,
    "gpu_process_memory_bytes: what is not the allocator's": process_beyond_allocator,
    "gpu_process_memory_bytes: the name of the process": process_name,
    "gpu_processes": processes,
}
