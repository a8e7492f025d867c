"""Writes files that are complete after a power loss: under another name, flushed to the disk, then renamed."""

import contextlib
import os


def write(path, content):
    """Replaces the file at `path` atomically: a reader sees the old file or the new one, never a part.

    `content`: the text, or a function that returns it for the inode of the new file.
    """
    beside = f"{path}.tmp"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(content(os.fstat(file.fileno()).st_ino) if callable(content) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    sync_folder(os.path.dirname(path))


def sync_folder(path):
    """Makes the names in a folder durable. Some network file systems cannot do this and need not, because they flush names with the file.
    """
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
