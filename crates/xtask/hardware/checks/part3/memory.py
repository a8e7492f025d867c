"""Trainings that run out of memory: cause, rank and evidence that Lockstep gives, beside torch's own message, its allocator's statistics and pynvml.

    exhaust.py                              the GPU is full: "on top of what it used"     on a CPU: more host memory than any machine has
    fragment.py                             enough is free, in pieces that are too small
    exhaust.py, while this process holds    another process has what is missing
    a part of the GPU

After each of them the GPU's memory is as free as before.
"""

import contextlib
import time

from .. import reference
from ..lockstep import Lockstep
from .training import cuda, ranks_of, reported, result, script

RUN_S = 60
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
# torch's message has two decimals of the unit, and Lockstep reads it from there.
ROUNDED_UNITS = 0.0051
# The interval of reading the process's memory; torch frees some of it at the moment of the failure.
PERIOD_S = 0.1
PROCESS_TOLERANCE = 0.01
# The driver's own memory changes by some MiB.
DRIVER_BYTES = 64 << 20
FREE_AGAIN_S = 10
HELD_BYTES = 8 * GIB
NO_GPU = "it needs a GPU"
# Words of the outcome's message for each reason.
REASONS = {
    "full": "on top of the ",
    "in pieces": "in pieces that were too small",
    "held by others": "while other processes held ",
    "too large for the host": "and the host has ",
}
# Sizes that both read from torch at different times; and those that the allocator keeps, which do not change in between.
ROUNDED = {"total": "total_bytes", "free": "free_bytes", "allocated": "allocated_bytes", "unallocated": "unallocated_bytes"}
KEPT = {"peak allocated": "peak_allocated_bytes", "peak reserved": "peak_reserved_bytes", "rests of split blocks": "inactive_split_bytes"}
CACHE_ROW = "times that the allocator emptied its cache"
ROWS = (
    "ends as", "cause", "rank", "type of the exception", "reason in the message", "requested", *ROUNDED, *KEPT, CACHE_ROW, "largest free block",
    "memory of the process", "memory is free again",
)  # fmt: skip


def run(check):
    torch = cuda(check)
    with Lockstep(check) as lockstep:
        failure = Failure(check, lockstep, torch)
        failure.check("memory full", "exhaust", "full" if torch else "too large for the host")
        failure.check("memory in pieces", "fragment", "in pieces")
        with holding(torch):
            failure.check("memory shared", "exhaust", "held by others")


class Failure:
    def __init__(self, check, lockstep, torch):
        self._check, self._lockstep, self._torch = check, lockstep, torch
        self._nv = reference.nvml(check.settings.simulate)[0] if torch else None

    def check(self, name, training, reason):
        """`exhaust` is the training that also works without a GPU, in its first use."""
        sheet = self._check.sheet
        if self._torch is None and (training != "exhaust" or reason == "held by others"):
            for what in ROWS:
                sheet.not_available(f"{name}: {what}", NO_GPU)
            return
        with reported(sheet, f"{name}: ends as"):
            self._compare(name, training, reason)

    def _compare(self, name, training, reason):
        sheet, lockstep = self._check.sheet, self._lockstep
        used_before = self._used()
        with reference.Recorder({"process": self._largest_process} if self._nv else {}, PERIOD_S) as recorder:
            run = lockstep.submit(script=script(self._check, training), nproc_per_node=1, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
            found = lockstep.wait_for_end(run, RUN_S)
        said = result(lockstep, run)
        outcome, exit_of_rank = found.get("outcome") or {}, ranks_of(found)[0]["exit"]
        memory = exit_of_rank.get("memory") or {}
        sheet.fact(f"{name}: torch, Lockstep", [said, outcome, memory])
        sheet.equal(f"{name}: ends as", found["state"], "failed")
        sheet.equal(f"{name}: cause", outcome.get("cause"), "out_of_memory")
        sheet.equal(f"{name}: rank", outcome.get("rank"), 0)
        sheet.equal(f"{name}: type of the exception", exit_of_rank.get("error_type"), said["type"])
        message = outcome.get("message", "")
        sheet.equal(f"{name}: reason in the message", next((word for word, words in REASONS.items() if words in message), message), reason)
        sheet.compare(f"{name}: requested", memory.get("requested_bytes"), said["requested_bytes"], unit="B", reference="the script")
        self._sizes(name, memory, said)
        readings = [value for _, value in recorder.readings.get("process", [])]
        process_bytes = max(readings, default=None)
        self._gpu_row(f"{name}: memory of the process", memory.get("process_bytes"), process_bytes, relative=PROCESS_TOLERANCE, unit="B", reference="pynvml")
        self._free_again(f"{name}: memory is free again", used_before)

    def _sizes(self, name, memory, said):
        total = said.get("total_bytes", host_bytes())
        for what, size in ROUNDED.items():
            own = total if what == "total" else said.get(size)
            row = self._check.sheet.compare if what == "total" else self._gpu_row
            row(f"{name}: {what}", memory.get(size), own, absolute=rounding(own), unit="B", reference="torch.cuda" if self._torch else "/proc/meminfo")
        for what, size in KEPT.items():
            self._gpu_row(f"{name}: {what}", memory.get(size), said.get(size), unit="B", reference="torch.cuda.memory_stats()")
        self._gpu_row(f"{name}: {CACHE_ROW}", memory.get("retries"), said.get("retries"), reference="torch.cuda.memory_stats()")
        largest = f"{name}: largest free block"
        if self._torch is None or "largest_free_bytes" in said:
            self._gpu_row(largest, memory.get("largest_free_bytes"), said.get("largest_free_bytes"), unit="B", reference="the script")
        else:
            self._check.sheet.not_available(largest, "this script makes no blocks of known size")

    def _gpu_row(self, what, found, expected, **options):
        if self._torch is None:
            return self._check.sheet.not_available(what, NO_GPU)
        return self._check.sheet.compare(what, found, expected, **options)

    # === pynvml ===

    def _used(self):
        return self._nv.nvmlDeviceGetMemoryInfo(self._device()).used if self._nv else None

    def _device(self):
        """The first GPU, which a run of one rank gets."""
        return self._nv.nvmlDeviceGetHandleByIndex(0)

    def _largest_process(self):
        return max(process.usedGpuMemory or 0 for process in self._nv.nvmlDeviceGetComputeRunningProcesses(self._device())) or None

    def _free_again(self, what, used_before):
        if used_before is None:
            return self._check.sheet.not_available(what, NO_GPU if self._torch is None else "pynvml does not work here")
        until = time.monotonic() + FREE_AGAIN_S
        while (used := self._used()) > used_before + DRIVER_BYTES and time.monotonic() < until:
            time.sleep(0.2)
        return self._check.sheet.compare(what, used, used_before, absolute=DRIVER_BYTES, unit="B", reference="before the run")


@contextlib.contextmanager
def holding(torch):
    """This process is the other process."""
    held = torch.empty(HELD_BYTES, dtype=torch.uint8, device="cuda") if torch else None
    yield
    del held
    if torch:
        torch.cuda.empty_cache()


def rounding(size):
    """By how much torch may have rounded a size. It writes bytes up to 1 KiB, then KiB, MiB, GiB."""
    return ROUNDED_UNITS * next((unit for unit in (GIB, MIB, KIB) if (size or 0) > unit), 0)


def host_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = dict(line.split(":", 1) for line in file)
    return int(sizes["MemTotal"].split()[0]) << 10
