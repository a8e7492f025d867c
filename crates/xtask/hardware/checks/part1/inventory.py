"""Compares Lockstep's inventory of the machine with nvidia-smi and pynvml; and runs `lockstep doctor`."""

import json

from .. import reference
from ..lockstep import Lockstep

MEBI = 1 << 20


def run(check):
    with Lockstep(check) as lockstep:
        inventory = lockstep.node["inventory"]
        check.sheet.fact("inventory", inventory)
        gpus = inventory["gpus"]
        nv, why = reference.nvml(check.settings.simulate)
        if nv is None:
            check.sheet.not_available("inventory beside pynvml", why)
        else:
            beside_pynvml(check.sheet, nv, inventory)
        smi = reference.smi()
        if smi:
            check.sheet.fact("nvidia-smi -q -x", smi)
            beside_smi(check.sheet, smi, inventory)
        else:
            check.sheet.not_available("inventory beside nvidia-smi", "nvidia-smi does not work here")
        check.sheet.holds("simulated GPUs are named as such, and no others", inventory.get("simulated") == check.settings.simulate, inventory.get("simulated"), check.settings.simulate)
        for gpu in gpus:
            check.sheet.fact(f"GPU {gpu['index']}: readings without an answer", gpu.get("unanswered", []))
        doctor(check, lockstep)


def beside_pynvml(sheet, nv, inventory):
    sheet.equal("number of GPUs beside pynvml", len(inventory["gpus"]), nv.nvmlDeviceGetCount())
    sheet.equal("driver version beside pynvml", inventory.get("driver_version"), text(nv.nvmlSystemGetDriverVersion()))
    cuda = nv.nvmlSystemGetCudaDriverVersion()
    sheet.equal("CUDA version beside pynvml", inventory.get("cuda_version"), f"{cuda // 1000}.{cuda % 1000 // 10}")
    for gpu in inventory["gpus"]:
        handle, at = nv.nvmlDeviceGetHandleByIndex(gpu["index"]), f"GPU {gpu['index']} "
        sheet.equal(at + "name beside pynvml", gpu["name"], text(nv.nvmlDeviceGetName(handle)))
        sheet.equal(at + "UUID beside pynvml", gpu["uuid"], text(nv.nvmlDeviceGetUUID(handle)))
        sheet.equal(at + "PCI address beside pynvml", gpu["pci_bus_id"].upper(), text(nv.nvmlDeviceGetPciInfo(handle).busId).upper())
        sheet.compare(at + "memory beside pynvml", gpu["memory_total_bytes"], nv.nvmlDeviceGetMemoryInfo(handle).total, unit="B")
        mig = reference.ask(lambda handle=handle: nv.nvmlDeviceGetMigMode(handle)[0])
        sheet.equal(at + "MIG beside pynvml", bool(gpu.get("mig_instances")), bool(mig) and instances(nv, handle) > 0)
        gpm = reference.ask(lambda handle=handle: nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        sheet.equal(at + "GPM beside pynvml", gpu["gpm"], bool(gpm))
        links = reference.ask(lambda handle=handle: nv.nvmlDeviceGetFieldValues(handle, [nv.NVML_FI_DEV_NVLINK_LINK_COUNT])[0])
        sheet.equal(at + "NVLinks beside pynvml", gpu.get("nvlinks", 0), links.value.uiVal if links is not None and links.nvmlReturn == 0 else 0)


def instances(nv, handle):
    found = [reference.ask(lambda place=place: nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)) for place in range(nv.nvmlDeviceGetMaxMigDeviceCount(handle))]
    return sum(instance is not None for instance in found)


def beside_smi(sheet, smi, inventory):
    sheet.equal("number of GPUs beside nvidia-smi", len(inventory["gpus"]), len(smi))
    for gpu, said in zip(inventory["gpus"], smi):
        at = f"GPU {gpu['index']} "
        sheet.equal(at + "name beside nvidia-smi", gpu["name"], said.get("product_name"))
        sheet.equal(at + "UUID beside nvidia-smi", gpu["uuid"], said.get("uuid"))
        sheet.equal(at + "PCI address beside nvidia-smi", gpu["pci_bus_id"].upper(), (said.get("id") or "").upper())
        sheet.compare(at + "memory beside nvidia-smi", gpu["memory_total_bytes"], reference.quantity(said.get("fb_memory_usage/total")), absolute=MEBI, unit="B")
        sheet.equal("driver version beside nvidia-smi", inventory.get("driver_version"), said.get("driver_version"))
        sheet.equal("CUDA version beside nvidia-smi", inventory.get("cuda_version"), said.get("cuda_version"))


def doctor(check, lockstep):
    """The output is for users; only its failures count here."""
    arguments = ["--simulate", check.settings.simulate] if check.settings.simulate else []
    asked = lockstep.command("doctor", "--json", *arguments)
    try:
        checks = json.loads(asked.stdout)
    except ValueError:
        check.sheet.failed("lockstep doctor", asked.stderr[-300:] or "it printed no JSON")
        return
    check.sheet.fact("lockstep doctor", checks)
    failing = [f"{one['name']}: {one['found']}" for one in checks if one["state"] == "fails"]
    check.sheet.holds("lockstep doctor finds nothing that fails", not failing, "; ".join(failing) or "nothing", "nothing")


def text(value):
    return value.decode() if isinstance(value, bytes) else value
