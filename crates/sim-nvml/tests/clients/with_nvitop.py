"""nvitop, used as a library and as a program."""

import subprocess
import sys

import nvitop

from machine import MIB


def check(checks, machine):
    name, mib, watts, links, *_ = machine.model
    checks.equal("nvitop count", nvitop.Device.count, machine.count)
    for device in nvitop.Device.all():
        if machine.is_gone(device.index):
            continue
        at = f"nvitop GPU {device.index} "
        cut = machine.instances(device.index)
        checks.equal(at + "name", device.name, name)
        checks.equal(at + "memory", device.memory_total, mib * MIB)
        checks.within(at + "power", device.power_usage, 1, watts * 1000)
        checks.within(at + "temperature", device.temperature, 25, 95)
        checks.equal(at + "processes", lambda: len(device.processes()), 0 if machine.idle else len(cut or [None]))
        snapshot = checks.read(at + "snapshot", device.as_snapshot)
        checks.equal(at + "snapshot's name", lambda: snapshot.name, name)
        if links:
            checks.equal(at + "links", device.nvlink_link_count, links)
        if cut is None:
            checks.within(at + "utilization", device.gpu_utilization, *((0, 0) if machine.idle else (85, 100)))
        else:
            check_instances(checks, machine, device, cut)
    screen = subprocess.run([sys.executable, "-m", "nvitop", "-1"], capture_output=True, text=True, timeout=120)
    checks.equal("nvitop -1", lambda: screen.returncode, 0)
    shown = name.removeprefix("NVIDIA ")[:15]
    checks.equal("nvitop -1 shows the GPUs", lambda: shown in screen.stdout, True)


def check_instances(checks, machine, device, names):
    at = f"nvitop GPU {device.index} "
    checks.equal(at + "is cut", device.is_mig_mode_enabled, True)
    checks.equal(at + "utilization", device.gpu_utilization, nvitop.NA)
    instances = checks.read(at + "instances", device.mig_devices)
    checks.equal(at + "instance count", lambda: len(instances), len(names))
    for instance, name in zip(instances or [], names):
        mib, _, _ = machine.instance(name)
        checks.equal(f"{at}{name} name", instance.name, f"{machine.model[0]} MIG {name}")
        checks.equal(f"{at}{name} memory", instance.memory_total, mib * MIB)
        checks.equal(f"{at}{name} processes", lambda: len(instance.processes()), 1)
