"""The state of memory at a failed allocation: what was requested, and what was available.

    held by other processes |  allocated, in use by tensors  | reserved by torch but unallocated | free
                            |<------------------- reserved ------------------->|

torch allocates cached memory only in whole blocks, and frees what it can before it fails. If more is unallocated than was requested,
the blocks are too small: fragmentation. Otherwise the model and its batch need more than is available. The exception's
message has the sizes at that moment; the allocator's statistics, read slightly later while the failed frames are alive, add the rest.
"""

import re

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE = r"([\d.]+) (bytes|[KMGT]iB)"
ON_CUDA = {
    "requested_bytes": rf"Tried to allocate {SIZE}",
    "total_bytes": rf"total capacity of {SIZE}",
    "free_bytes": rf"of which {SIZE} is free",
    "process_bytes": rf"this process has {SIZE} memory in use",
    "allocated_bytes": rf"allocated memory {SIZE} is allocated by PyTorch",
    "unallocated_bytes": rf"{SIZE} is reserved by PyTorch but unallocated",
}
STATISTICS = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "retries": "num_alloc_retries",
}
TOP = 5  # number of block sizes that use the most memory
BLOCKS_MAX = 50_000  # if the allocator has more, only the statistics are sent: reading all blocks would delay a dying rank


def evidence(torch, error, message):
    """Returns the `memory` of an error record; None if the failure is not about memory."""
    if type(error).__name__.endswith("OutOfMemoryError"):
        return on_cuda(torch, message)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in message:
        return on_host(message)
    return None


# === a GPU ===


def on_cuda(torch, message):
    known = {name: size_in(message, pattern) for name, pattern in ON_CUDA.items()}
    found = re.search(r"GPU (\d+) has", message)
    device = int(found.group(1)) if found else None
    known["device"] = "cuda" if device is None else f"cuda:{device}"
    try:
        known.update(by_allocator(torch.cuda, torch.cuda.current_device() if device is None else device))
    except Exception:  # another allocator (cudaMallocAsync, a plug-in) has no such statistics; the message remains
        pass
    return present(known)


def by_allocator(cuda, device):
    statistics = cuda.memory_stats(device)
    known = {name: statistics.get(key) for name, key in STATISTICS.items()}
    if statistics.get("active.all.current", 0) + statistics.get("inactive_split.all.current", 0) <= BLOCKS_MAX:
        known.update(by_blocks(block for segment in cuda.memory_snapshot() if segment["device"] == device for block in segment["blocks"]))
    return known


def by_blocks(blocks):
    """Returns the largest free block, and the sizes that use the most memory: [[bytes each, count], …]."""
    free, used = 0, {}
    for block in blocks:
        if block["state"] == "inactive":
            free = max(free, block["size"])
        elif block["state"] == "active_allocated":
            used[block["size"]] = used.get(block["size"], 0) + 1
    top = sorted(used.items(), key=lambda item: item[0] * item[1], reverse=True)[:TOP]
    return {"largest_free_bytes": free, "top": [list(item) for item in top] or None}


def size_in(message, pattern):
    found = re.search(pattern, message)
    return int(float(found.group(1)) * UNITS[found.group(2)]) if found else None


# === the host ===


def on_host(message):
    found = re.search(r"you tried to allocate (\d+) bytes", message)
    system, own = kibibytes("/proc/meminfo"), kibibytes("/proc/self/status")
    return present({
        "device": "cpu",
        "requested_bytes": int(found.group(1)) if found else None,
        "total_bytes": system.get("MemTotal"),
        "free_bytes": system.get("MemAvailable"),
        "process_bytes": own.get("VmRSS"),
    })


def kibibytes(path):
    """Returns the sizes in a file like /proc/meminfo, in bytes; empty if there is none."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return {name: int(size) << 10 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", file.read(), re.MULTILINE)}
    except OSError:
        return {}


def present(known):
    return {name: value for name, value in known.items() if value is not None}
