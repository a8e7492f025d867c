"""What a rank can save alone, when training broke: an exception here, a peer that died, a stop that the ranks could not agree on.

After a peer has failed a collective may wait for ever, so nothing here talks to another rank. Under DDP that is less of a loss than it sounds:

    emergency-000127/rank-0.pth     the model, the optimizer and the rest that all ranks hold alike, and rank 0's own part
    emergency-000127/rank-1.pth     rank 1's own part: its random numbers, its position in the data

With every rank's file for the same step, training goes on from it exactly; without rank 0's it is of no use; with rank 0's alone it
can be resumed by its path, but the other ranks' random numbers are new. Nothing is saved
- by a rank that was killed (SIGKILL, out of memory), or that its launcher kills before it is done;
- when the failure came in the middle of the weights' update: half of them are of the next step;
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
    """Writes this rank's part and returns its path; the caller decides that it is time, and that the weights are whole."""
    state = {"step": training.step, "rank": dist.get_rank(), "world_size": dist.get_world_size(), "reason": reason}
    if dist.get_rank() == 0:
        state.update(training.shared())
    state["ranks"] = training.of_ranks()
    path = os.path.join(folder, f"{PREFIX}{training.step:06d}", f"rank-{dist.get_rank()}.pth")
    files.write(path, state)
    return path


def load(path):
    """Rank 0's file with this rank's own part in the place of rank 0's, where there is one."""
    state = files.read(part(path, 0))
    own = part(path, dist.get_rank())
    if os.path.exists(own):
        state["ranks"].update(files.read(own)["ranks"])
    return state


def whole(folder):
    """The snapshots in which no rank's part is missing, in the order in which they were finished."""
    try:
        found = [os.path.join(folder, entry) for entry in os.listdir(folder) if NAME.fullmatch(entry)]
    except FileNotFoundError:
        return []
    return sorted(filter(is_whole, found), key=finished_ns)


def is_whole(path):
    try:
        ranks = files.read(part(path, 0))["world_size"]
    # A damaged file is no snapshot; torch has no common class for what it raises then.
    except Exception:  # noqa: BLE001
        return False
    return all(os.path.exists(part(path, rank)) for rank in range(ranks))


def is_one(path):
    return bool(NAME.fullmatch(os.path.basename(os.path.normpath(path))))


def part(path, rank):
    return os.path.join(path, f"rank-{rank}.pth")


def finished_ns(path):
    return max(os.stat(os.path.join(path, entry)).st_mtime_ns for entry in os.listdir(path))
