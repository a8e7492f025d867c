"""The snapshot of all-smi, if it is available. It contains the MIG mode; this release shows instances only on its screen."""

import json
import os
import pathlib
import subprocess

from machine import MIB


def check(checks, machine, program):
    printed = subprocess.run(
        [program, "snapshot", "--format", "json", "--include", "gpu"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(program),
    )
    checks.equal("all-smi snapshot", lambda: printed.returncode, 0)
    gpus = checks.read("all-smi's JSON", lambda: json.loads(printed.stdout)["gpus"])
    checks.equal("all-smi count", lambda: len(gpus), machine.count)
    for index, gpu in enumerate(gpus or []):
        if not machine.is_gone(index):
            check_gpu(checks, machine, index, gpu)


def environment(program):
    """all-smi searches for `nvidia-smi` before it tries NVML, so a stand-in is placed beside it."""
    return dict(os.environ, PATH=f"{pathlib.Path(program).parent}:{os.environ['PATH']}")


def check_gpu(checks, machine, index, gpu):
    name, mib, watts, links, *_ = machine.model
    at = f"all-smi GPU {index} "
    checks.equal(at + "name", lambda: gpu["name"], name)
    checks.equal(at + "memory", lambda: gpu["total_memory"], mib * MIB)
    checks.within(at + "power", lambda: gpu["power_consumption"], 1, watts)
    checks.within(at + "temperature", lambda: gpu["temperature"], 25, 95)
    checks.equal(at + "driver", lambda: gpu["detail"]["Driver Version"], machine.driver)
    checks.within(at + "clock", lambda: gpu["frequency"], 100, 3_200)
    down = sum(not machine.link_is_up(index, link) for link in range(links))
    checks.equal(at + "links", lambda: len(gpu["nvlink_remote_devices"]), links - down)
    width = machine.pcie_width(index)
    checks.equal(at + "PCIe width", lambda: gpu["detail"]["PCIe Width"], f"x{width}")
    cut = machine.instances(index) is not None
    # all-smi omits the mode if there is no MIG.
    mode = str(int(cut)) if machine.model[7] else None
    checks.equal(at + "MIG mode", lambda: gpu["detail"].get("mig_mode_current"), mode)
    if not cut:
        checks.within(at + "memory share", lambda: gpu["used_memory"] / gpu["total_memory"], *machine.memory_share(index))
        checks.within(at + "utilization", lambda: gpu["utilization"], *((0, 0) if machine.idle else (85, 100)))
