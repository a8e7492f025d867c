"""Trains a linear layer and keeps the predictions for a large validation set after each step, until there is no memory left.

On a GPU all memory but `--leave-gib` is taken at first, so that this takes some steps only. On a CPU the last prediction is for a validation set that no
machine has memory for. Before the error ends the script, its last line of output says as a JSON object what PyTorch knows of the memory.
"""

import argparse
import json
import os

import torch
from torch import nn

FEATURES = 1024
GIB = 1 << 30
STEPS_BEFORE = 3
# Of host memory: beyond the address space of one process, so the kernel refuses it whatever its settings are.
TOO_MUCH_BYTES = 1 << 50


def main():
    parser = argparse.ArgumentParser(description="Train until the memory is exhausted.")
    parser.add_argument("--leave-gib", type=float, default=4.0, help="GPU memory that is left at first")
    parser.add_argument("--keep-mib", type=int, default=256, help="what is kept of each step")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training = Training(device)
    for _ in range(STEPS_BEFORE):
        training.step()
    requested = asked.keep_mib << 20 if device.type == "cuda" else TOO_MUCH_BYTES
    try:
        kept = fill(asked.leave_gib) if device.type == "cuda" else []
        while True:
            training.step()
            kept.append(training.predict(requested))
    except Exception as error:  # torch.OutOfMemoryError of a GPU, RuntimeError of the host
        print(json.dumps({"requested_bytes": requested, **books(error, device)}), flush=True)
        raise


class Training:
    def __init__(self, device):
        self.device = device
        self.model = nn.Linear(FEATURES, FEATURES, bias=False).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(64, FEATURES, device=device)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()

    @torch.no_grad()
    def predict(self, size):
        """Predictions of this many bytes, for a validation set that is one sample repeated: it takes no memory itself."""
        predictions = torch.empty(size // (4 * FEATURES), FEATURES, device=self.device)
        return predictions.copy_(self.model(self.batch[:1]).expand_as(predictions))


def fill(leave_gib):
    free, _ = torch.cuda.mem_get_info()
    return [torch.empty(max(0, int(free - leave_gib * GIB)), dtype=torch.uint8, device="cuda")]


def books(error, device):
    """What PyTorch says of the memory: its message, its allocator's statistics, and the driver's free and total."""
    said = {"type": type(error).__name__, "message": str(error), "pid": os.getpid(), "device": device.type}
    if device.type == "cpu":
        return said
    statistics = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    allocated, reserved = statistics["allocated_bytes.all.current"], statistics["reserved_bytes.all.current"]
    return said | {
        "free_bytes": free,
        "total_bytes": total,
        "allocated_bytes": allocated,
        "unallocated_bytes": reserved - allocated,
        "inactive_split_bytes": statistics["inactive_split_bytes.all.current"],
        "peak_allocated_bytes": statistics["allocated_bytes.all.peak"],
        "peak_reserved_bytes": statistics["reserved_bytes.all.peak"],
        "retries": statistics["num_alloc_retries"],
    }


if __name__ == "__main__":
    main()
