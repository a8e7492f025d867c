"""Identity of this rank: versions, process group, device. Never initialises CUDA, which would break scripts that fork later."""

import os
import platform


def fields(torch, device, notes):
    """Returns the fields of a `hello` record that are known now."""
    known = {
        "world_size": int(os.environ["WORLD_SIZE"]),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "nccl": nccl_version(torch),
        "backend": backend(torch),
        "device": device,
        "notes": list(notes) or None,
    }
    if device is not None and device.startswith("cuda"):
        known.update(gpu(torch, device))
    return known


def backend(torch):
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return str(distributed.get_backend())


def nccl_version(torch):
    """Returns the version of the library that torch has loaded; None for a build without CUDA."""
    try:
        if torch.version.cuda is None or not torch.distributed.is_nccl_available():
            return None
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception:
        return None


def gpu(torch, device):
    """Returns UUID and PCI address in NVML's format, if this torch provides them (2.4 and later)."""
    properties = torch.cuda.get_device_properties(device)
    known = {}
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        known["gpu_uuid"] = f"GPU-{uuid}"
    bus = getattr(properties, "pci_bus_id", None)
    if isinstance(bus, int):
        domain, slot = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        known["gpu_pci_bus_id"] = f"{domain:08X}:{bus:02X}:{slot:02X}.0"
    return known
