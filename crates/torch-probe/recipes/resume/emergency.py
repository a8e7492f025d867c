"""Saves what a rank can save alone after a failure: an exception in this rank, a peer that died, a stop without agreement of the ranks.

After a peer has failed, a collective may wait forever, so nothing here communicates with other ranks. Under DDP little is lost:

    emergency-000127/rank-0.pth     the model, the optimizer and other state that is equal on all ranks, and rank 0's own part
    emergency-000127/rank-1.pth     rank 1's own part: its random numbers, its position in the data

With every rank's file for the same step, training continues from it exactly. Without rank 0's file it is useless. With only rank 0's it
can be resumed by its path, but the other ranks' random numbers are new. Nothing is saved
- by a rank that was killed (SIGKILL, out of memory), or that its launcher kills before it is done;
- if the failure happened during the update of the weights: some of them belong to the next step;
- while the main thread waits inside a collective for a peer that is stopped but not gone, or in NCCL's time-out: Python runs no
  handler there. Regular checkpoints are for that.
"""

import os
import re

import files
import torch.distributed as dist

PREFIX = "emergency-"
NAME = re.compile(rf"{PREFIX}(\d+)")


def save(training, folder, reason):
    """Writes this rank's part and returns its path. The caller ensures that this is needed, and that the weights are consistent."""
    state = {"step": training.step, "rank": dist.get_rank(), "world_size": dist.get_world_size(), "reason": reason}
    if dist.get_rank() == 0:
        state.update(training.shared())
    state["ranks"] = training.of_ranks()
    path = os.path.join(folder, f"{PREFIX}{training.step:06d}", f"rank-{dist.get_rank()}.pth")
    files.write(path, state)
    return path


def load(path):
    """Loads rank 0's file with this rank's own part instead of rank 0's, if there is one."""
    state = files.read(part(path, 0))
    own = part(path, dist.get_rank())
    if os.path.exists(own):
        state["ranks"].update(files.read(own)["ranks"])
    return state


def whole(folder):
    """Returns the emergency checkpoints with the parts of all ranks, in the order of completion."""
    try:
        found = [os.path.join(folder, entry) for entry in os.listdir(folder) if NAME.fullmatch(entry)]
    except FileNotFoundError:
        return []
    return sorted(filter(is_whole, found), key=finished_ns)


def is_whole(path):
    try:
        ranks = files.read(part(path, 0))["world_size"]
    # A damaged file is not a checkpoint; torch has no common class for its errors.
    except Exception:  # noqa: BLE001
        return False
    return all(os.path.exists(part(path, rank)) for rank in range(ranks))


def is_one(path):
    return bool(NAME.fullmatch(os.path.basename(os.path.normpath(path))))


def part(path, rank):
    return os.path.join(path, f"rank-{rank}.pth")


def finished_ns(path):
    return max(os.stat(os.path.join(path, entry)).st_mtime_ns for entry in os.listdir(path))
