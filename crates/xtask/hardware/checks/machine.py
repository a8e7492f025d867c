"""The machine: GPU, driver, PyTorch, operating system."""

import importlib.util
import os
import pathlib
import platform
import re
import subprocess


def describe(root, settings):
    """Describes the machine for a reader of the results."""
    gpu = nvidia_smi("name,driver_version,memory.total,pci.bus_id,mig.mode.current")
    first = gpu[0] if gpu else ["", "", "", "", ""]
    return {
        "gpu": f"{len(gpu)} × {first[0]}" if gpu else settings.simulate or "",
        "gpus": len(gpu),
        "driver": first[1],
        "memory": first[2],
        "mig": first[4],
        "simulated": settings.simulate or "",
        "quick": settings.quick,
        "torch": torch_version(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "revision": (root / "REVISION").read_text(encoding="utf-8").strip() if (root / "REVISION").is_file() else "unknown",
    }


def in_words(described):
    gpu = described["gpu"] or "no GPU"
    driver = f", driver {described['driver']}" if described["driver"] else ""
    simulated = " (simulated)" if described["simulated"] else ""
    return f"{gpu}{simulated}{driver}, torch {described['torch'] or 'missing'}, Python {described['python']}, {described['cpus']} CPUs, Linux {described['kernel']}, {described['libc']}"


def nvidia_smi(fields):
    """Returns one list per GPU; empty if nvidia-smi does not work."""
    try:
        asked = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in asked.stdout.splitlines()] if asked.returncode == 0 else []


def torch_version():
    """Reads the version from its files: importing PyTorch takes seconds and memory."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return ""
    said = re.search(r"^__version__ = ['\"](.+?)['\"]", (pathlib.Path(found.origin).parent / "version.py").read_text(encoding="utf-8"), re.MULTILINE)
    return said.group(1) if said else "unknown"
