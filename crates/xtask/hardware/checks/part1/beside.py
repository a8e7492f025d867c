"""Compares the agent's samples of some seconds with the values of pynvml and nvidia-smi in the same seconds."""

import threading
import time
from dataclasses import dataclass, field

from .. import reference
from .values import VALUES

# The agent reads once per second, slow values every ten seconds; each sample is compared with readings around its own time stamp.
BEFORE_S, AFTER_S = 1.6, 0.8
PERIOD_S = 0.2
SMI_PERIOD_S = 1.0
# `Active` and `Not Active` of nvidia-smi.
WORDS = {"Active": 1, "Not Active": 0}


@dataclass
class Recording:
    """Readings of both references since `begin`."""

    begin: float
    nvml: reference.Recorder | None
    why_no_nvml: str
    smi: list = field(default_factory=list)  # (begin, end, one dictionary per GPU)


class Beside:
    """Records both references while its block runs. It starts before the agent, which reads constant values once per minute."""

    def __init__(self, check):
        self._nv, why = reference.nvml(check.settings.simulate)
        functions = {}
        for gpu in range(self._nv.nvmlDeviceGetCount() if self._nv else 0):
            handle = self._nv.nvmlDeviceGetHandleByIndex(gpu)
            for value in VALUES:
                if value.nvml:
                    functions[gpu, value.name] = lambda value=value, handle=handle: value.nvml(self._nv, handle)
        self._recorder = reference.Recorder(functions, PERIOD_S) if functions else None
        self._recording = Recording(time.time(), self._recorder, why)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_smi, daemon=True)

    def __enter__(self):
        self._recording.begin = time.time()
        if self._recorder:
            self._recorder.__enter__()
        self._thread.start()
        # The agent's first sample, a moment after its start, needs readings before it.
        time.sleep(2 * PERIOD_S)
        return self._recording

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(30)
        if self._recorder:
            self._recorder.__exit__()

    def _ask_smi(self):
        while not self._stop.is_set():
            began = time.time()
            found = reference.smi()
            if not found:
                return
            self._recording.smi.append((began, time.time(), found))
            self._stop.wait(SMI_PERIOD_S)


def report(check, lockstep, recording, suffix=""):
    """A row per value, GPU and reference."""
    gpus = len(lockstep.node["inventory"]["gpus"])
    if gpus == 0:
        check.sheet.not_available("NVML values" + suffix, lockstep.node["inventory"].get("gpus_missing") or "the driver knows no GPU")
    if recording.nvml is None:
        check.sheet.not_available("NVML values beside pynvml" + suffix, recording.why_no_nvml)
    if not recording.smi:
        check.sheet.not_available("NVML values beside nvidia-smi" + suffix, "nvidia-smi does not work here")
    seconds = time.time() - recording.begin
    for gpu in range(gpus):
        at = f"GPU {gpu} " if gpus > 1 else ""
        for value in VALUES:
            found = lockstep.samples(value.selector(gpu), seconds)
            # Readings before a sample are also needed.
            samples = [(when, number) for when, number in found[0][1] if when >= recording.begin + 2 * PERIOD_S] if found else []
            if recording.nvml:
                against_nvml(check, value, samples, recording, gpu, f"{at}{value.name}{suffix} beside pynvml")
            if value.smi and recording.smi:
                against_smi(check, value, samples, recording, gpu, f"{at}{value.name}{suffix} beside nvidia-smi")


def against_nvml(check, value, samples, recording, gpu, what):
    if not recording.nvml.readings[gpu, value.name]:
        if samples:
            return check.sheet.holds(what, False, f"{samples[-1][1]:g}", "no answer from the driver")
        return check.sheet.not_available(what, "the driver refuses it, and Lockstep has no such series")
    pairs = [(number, recording.nvml.near((gpu, value.name), when, BEFORE_S, AFTER_S)) for when, number in samples]
    judge(check, value, [pair for pair in pairs if pair[1]], what, value.absolute, "pynvml")


def against_smi(check, value, samples, recording, gpu, what):
    readings = [(began, ended, first_number(found[gpu], value.smi)) for began, ended, found in recording.smi]
    readings = [reading for reading in readings if reading[2] is not None]
    if not readings:
        return check.sheet.not_available(what, f"nvidia-smi has none of {', '.join(value.smi)}")
    pairs = []
    for when, number in samples:
        near = [reading for began, ended, reading in readings if began - AFTER_S <= when <= ended + BEFORE_S]
        if near:
            pairs.append((number, near))
    judge(check, value, pairs, what, value.absolute + value.smi_absolute, "nvidia-smi")


def judge(check, value, pairs, what, absolute, name):
    """A sample agrees if it is within the readings around it, plus the tolerance."""
    if not pairs:
        return check.sheet.not_available(what, "Lockstep has no sample with readings around it")
    inside, worst = 0, (-1.0, 0.0, 0.0)
    for number, near in pairs:
        low, high = min(near), max(near)
        nearest = min(max(number, low), high)
        beyond = abs(number - nearest) - (absolute + value.relative * abs(nearest))
        inside += beyond <= 0
        worst = max(worst, (abs(number - nearest), number, nearest))
    check.sheet.samples(what, inside, len(pairs), worst[1], worst[2], value.unit, name)


def first_number(found, paths):
    """Drivers name elements differently, and have `N/A` in some."""
    numbers = (WORDS[text] if (text := found.get(path, "")) in WORDS else reference.quantity(text.removesuffix("x")) for path in paths)
    return next((number for number in numbers if number is not None), None)
