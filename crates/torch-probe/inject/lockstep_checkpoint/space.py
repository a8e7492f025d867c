"""Is there room for a save? Asked by the coordinator between DCP's plan and its first written byte.

Its refusal reaches every rank through the exchange that DCP makes anyway, so all ranks fail alike and nothing has been written. The estimate
counts what is expected to be linked as nothing; should it be wrong, the save fails half-way, which is safe, only later.
"""

import errno
import os

from .grouping import item_bytes

ITEM_BYTES = 4096  # what a tensor's header, or a small object, takes beside its bytes
RESERVE = 0.02  # of the estimate: blocks of the file system, the sidecars


class NotEnoughSpace(OSError):
    """The disk cannot hold the checkpoint. Nothing of it has been written."""


def check(parent, plans, earlier):
    """Raises NotEnoughSpace unless the folder's disk can hold what these plans will write."""
    need, free = needed(plans, earlier), free_bytes(parent)
    if need > free:
        raise NotEnoughSpace(
            errno.ENOSPC,
            f"the next checkpoint needs {need} bytes and {free} are free; remove old checkpoints or choose a larger disk",
            str(parent),
        )


def needed(plans, earlier):
    items = [item for plan in plans for item in plan.items if not earlier.can_be_linked(item.index)]
    return int(sum(ITEM_BYTES + item_bytes(item) for item in items) * (1 + RESERVE))


def free_bytes(path):
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize
