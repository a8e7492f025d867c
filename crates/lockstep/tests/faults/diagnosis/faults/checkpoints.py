"""Checkpoints of one rank that cannot be saved, or take long. The script goes on without them.

    full-disk                 the test fills the file system of the rank's checkpoints
    folder-gone               the folder of the rank's checkpoints is removed
    file-size-limit           files of the rank may have at most MAGNITUDE bytes
    slow-save                 compresses for MAGNITUDE seconds while it saves
"""

import os
import resource
import shutil
import time
import zlib


class Compressed:
    """An object that computes for some seconds when it is saved."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        data, until = os.urandom(1 << 16), time.monotonic() + self.seconds
        while time.monotonic() < until:
            zlib.compress(data, 9)
        return bytes, ()


def remove_folder(training):
    shutil.rmtree(training.folder)


def limit_file_size(training):
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(training.arguments.magnitude), hard_limit))


def slow_down_saves(training):
    training.also_saved = Compressed(training.arguments.magnitude)


STRIKES = {"folder-gone": remove_folder, "file-size-limit": limit_file_size, "slow-save": slow_down_saves}
