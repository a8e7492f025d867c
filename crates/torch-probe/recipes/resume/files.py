"""Files of `torch.save` that are either complete or absent."""

import os

import torch


def write(path, state):
    """Writes under another name, flushes, renames: a file of this name is always complete."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = f"{path}.tmp"
    with open(beside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def read(path):
    """Reads tensors and plain values only: nothing in the file is executed."""
    return torch.load(path, map_location="cpu", weights_only=True)
