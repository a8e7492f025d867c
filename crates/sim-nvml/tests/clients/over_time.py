"""pynvml reads repeatedly while a scenario file runs, and must see each change at the time in the file.

    LOCKSTEP_SIMULATE=h100x2:file=changing.scenario LD_LIBRARY_PATH=DIR python over_time.py

Prints one line like the other clients, and exits with the same codes.
"""

import sys
import time

import pynvml as nv

from checks import Checks

# Seconds after the time in the file within which a change must be seen: this program shares its machine with others.
LATE_S = 0.8
END_S = 9.0

# (what, which GPU, its first value, [(second, value from then on)])
CHANGES = [
    ("clock reasons", 0, 0, [(1, 0x4), (3, 0), (5, "GPU is lost"), (6, 0), (7, "no driver"), (8, 0)]),
    ("link 5", 1, 1, [(2, 0), (4, 1), (7, "no driver"), (8, 1)]),
    ("instances", 1, None, [(3, "MIG 7g.80gb"), (4.5, None), (7, "no driver"), (8, None)]),
    ("driver", 1, "580.95.05", [(7, "no driver"), (8, "590.48.01")]),
]


def clock_reasons(gpu):
    return nv.nvmlDeviceGetCurrentClocksEventReasons(gpu)


def link(gpu):
    return nv.nvmlDeviceGetNvLinkState(gpu, 5)


def instances(gpu):
    if nv.nvmlDeviceGetMigMode(gpu)[0] == 0:
        return None
    name = nv.nvmlDeviceGetName(nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
    return name.removeprefix("NVIDIA H100 80GB HBM3 ")


def driver(_gpu):
    return nv.nvmlSystemGetDriverVersion()


READ = {"clock reasons": clock_reasons, "link 5": link, "instances": instances, "driver": driver}


def look(what, index):
    """Returns the current value. The errors that the scenario causes are values too."""
    try:
        return READ[what](nv.nvmlDeviceGetHandleByIndex(index))
    except nv.NVMLError_GpuIsLost:
        return "GPU is lost"
    except nv.NVMLError_Uninitialized:
        # The driver was unloaded. NVML must be initialised again before reading.
        try:
            nv.nvmlInit()
        except nv.NVMLError_DriverNotLoaded:
            return "no driver"
        return look(what, index)


def watch():
    """Returns for each value when it changed and to what."""
    nv.nvmlInit()
    begun = time.monotonic()
    seen = {what: [] for what in READ}
    while time.monotonic() - begun < END_S:
        for what, index, *_ in CHANGES:
            value, now = look(what, index), time.monotonic() - begun
            if not seen[what] or seen[what][-1][1] != value:
                seen[what].append((now, value))
        time.sleep(0.02)
    return seen


def main():
    checks = Checks("changing.scenario")
    seen = watch()
    for what, _, before, changes in CHANGES:
        expected = [before] + [value for _, value in changes]
        checks.equal(what, lambda: [value for _, value in seen[what]], expected)
        for (at, _), (due, value) in zip(seen[what][1:], changes):
            checks.within(f"{what} becomes {value}, seconds", lambda: at, due - 0.1, due + LATE_S)
    for line in checks.wrong:
        print(f"changing.scenario: {line}", file=sys.stderr)
    print(f"changing.scenario: {checks.done} values, {len(checks.wrong)} wrong")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
