"""Files that are whole after a power cut: written beside, flushed to the disk, then renamed."""

import contextlib
import os


def write(path, content):
    """Puts text at `path`, at once: a reader sees the old file or the new one, never a part.

    `content`: the text, or a function that makes it from the inode that the file will have.
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
    """Makes the names in a folder durable. Some network file systems cannot, and need not: they do it with the file."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
