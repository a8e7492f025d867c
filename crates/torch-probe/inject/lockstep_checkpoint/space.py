"""Checks that there is space for a save. The coordinator does this between DCP's plan and its first written byte.

A refusal reaches every rank through the communication that DCP needs anyway, so all ranks fail in the same way and nothing has been
written. The estimate counts files that will probably be linked as 0 bytes. If it is wrong, the save fails later, which is still safe.
"""

import errno
import os

from .grouping import item_bytes

ITEM_BYTES = 4096  # size of a tensor's header, or of a small object
RESERVE = 0.02  # share of the estimate: blocks of the file system, sidecars


class NotEnoughSpace(OSError):
    """The disk cannot hold the checkpoint. No part of it was written."""


def check(parent, plans, earlier):
    """Raises NotEnoughSpace if the folder's disk cannot hold what these plans will write."""
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
