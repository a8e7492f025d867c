"""Reports saves as records: the path of a checkpoint, its start, end or failure, and how long the training stood still for it.

`torch.save` to a file and `torch.distributed.checkpoint.{save, async_save, save_state_dict}` are wrapped in the modules that define them,
before other code can import them from there. A save inside another save (the shards of a distributed one) is a part of it. An asynchronous
save ends with its future: its own thread reports the end, and no thread is added. The files of a save are noted when it ends, before its
record is sent: see written.py.
"""

import errno
import functools
import os
import time

from . import record
from .page import SAVE
from .written import Written

PATH_BYTES = 4096  # PATH_MAX
ERROR_BYTES = 1024
ITEMS_MAX = 100_000  # the size of a checkpoint with more tensors is not computed


def watch_torch_save(probe, module):
    module.save = watched(probe, module.save, "torch_save", file_path)


def watch_distributed(probe, module):
    for name in ("save", "async_save", "save_state_dict"):
        if hasattr(module, name):
            setattr(module, name, watched(probe, getattr(module, name), "dcp", checkpoint_path))


def watched(probe, original, kind, path_of):
    @functools.wraps(original)
    def save(*args, **kwargs):
        under_way = probe.call(probe.saves.begin, kind, path_of, args, kwargs)
        if under_way is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:  # torch's CheckpointException is not an Exception
            probe.call(under_way.raised, error)
            raise
        probe.call(under_way.returned, result)
        return result

    save._torchdynamo_disable = True
    return save


class Saves:
    """The saves of this process."""

    def __init__(self, probe, socket_path):
        self.probe = probe
        self.under_way = []
        self.written = Written(socket_path, probe.envelope.rank, probe.envelope.local_rank)

    def begin(self, kind, path_of, args, kwargs):
        """Returns None if this is not a separate checkpoint."""
        path, target = path_of(args, kwargs)
        if path is None or self._is_part(path):
            return None
        return Save(self, kind, path, target, args, kwargs)

    def _is_part(self, path):
        return any(path == save.path or os.path.dirname(path) == save.path for save in self.under_way)


class Save:
    def __init__(self, saves, kind, path, target, args, kwargs):
        self.path = path
        self._saves, self._kind, self._target = saves, kind, target
        self._writer = kwargs.get("storage_writer", args[1] if kind == "dcp" and len(args) > 1 else None)
        self._alone = is_alone(kwargs)
        self._step = saves.probe.steps
        self._holds_up = saves.probe.is_training_thread()
        self._start = time.perf_counter()
        self._blocked_s = None
        saves.under_way.append(self)
        if self._holds_up:
            saves.probe.cycle.begin_save()
            saves.probe.page.begin(SAVE)
        self._say("begin", {})

    def returned(self, result):
        self._unblock()
        future = getattr(result, "upload_completion", result)
        if hasattr(future, "add_done_callback"):
            future.add_done_callback(lambda future: self._saves.probe.call(self._settled, future))
        else:
            self._ended(result)

    def raised(self, error):
        self._unblock()
        self._failed(error)

    def _unblock(self):
        self._blocked_s = time.perf_counter() - self._start
        if self._holds_up:
            self._saves.probe.cycle.end_save(self._blocked_s)
            self._saves.probe.page.end()

    def _settled(self, future):
        if future.cancelled():
            return self._failed(RuntimeError("the save was cancelled"))
        error = future.exception()
        if error is not None:
            return self._failed(error)
        self._ended(future.result())

    def _ended(self, result):
        self._note_files(result)
        self._close("end", {"bytes": size_of(self._target, self.path, result)})

    def _note_files(self, result):
        written = self._saves.written
        try:
            if self._kind == "dcp":
                # A writer may choose its folder only during the save.
                folder = folder_of(self._writer) or self.path
                written.note_folder(folder, result, self._writer, self._alone)
            else:
                written.note_file(self.path, self._target)
        except (OSError, ValueError, AttributeError):
            pass  # not noted: Lockstep does not remove the checkpoint

    def _failed(self, error):
        error = root_cause(error, self._saves.probe.envelope.rank)
        code = getattr(error, "errno", None)
        fields = {"error": record.head(f"{type(error).__name__}: {said(error)}", ERROR_BYTES), "errno": errno.errorcode.get(code)}
        fields["free_bytes"] = free_bytes(self.path)
        self._close("failure", fields)

    def _close(self, phase, fields):
        if self in self._saves.under_way:
            self._saves.under_way.remove(self)
        blocked_s = self._blocked_s if self._holds_up else 0.0
        self._say(phase, {"seconds": time.perf_counter() - self._start, "blocked_s": blocked_s, **fields})

    def _say(self, phase, fields):
        head = {"phase": phase, "path": record.head(self.path, PATH_BYTES), "format": self._kind, "step": self._step}
        self._saves.probe.say("checkpoint", {**head, "background": None if self._holds_up else True, **fields})


# === path, size, error ===


def file_path(args, kwargs):
    """Returns (absolute path, file object or None) of `torch.save(object, f)`; (None, None) if `f` is not a file with a name."""
    f = args[1] if len(args) > 1 else kwargs.get("f")
    name, target = (f, None) if isinstance(f, (str, bytes, os.PathLike)) else (getattr(f, "name", None), f)
    if not isinstance(name, (str, bytes, os.PathLike)):
        return None, None
    text = os.fsdecode(name)
    if text.startswith("<") or text.startswith("/dev/"):  # "<stdout>"
        return None, None
    return os.path.abspath(text), target


def checkpoint_path(args, kwargs):
    """Returns (absolute path, None); an address like s3://… is not changed. A writer without a path is named by its type."""
    where = kwargs.get("checkpoint_id")
    if where is None:
        writer = kwargs.get("storage_writer", args[1] if len(args) > 1 else None)
        where = getattr(writer, "checkpoint_id", None) or getattr(writer, "path", None) or type(writer).__name__
    text = os.fsdecode(where) if isinstance(where, (str, bytes, os.PathLike)) else str(where)
    return (text if "://" in text else os.path.abspath(text)), None


def folder_of(writer):
    """Returns the absolute folder into which a storage writer has written, or None."""
    path = getattr(writer, "path", None)
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return os.path.abspath(text) if text and "://" not in text else None


def is_alone(kwargs):
    """Returns True if a distributed save may not include rank 0 of this node."""
    return kwargs.get("process_group") is not None or bool(kwargs.get("no_dist")) or not kwargs.get("use_collectives", True)


def size_of(file, path, result):
    """Returns the bytes of the file, or of the whole distributed checkpoint if this rank knows them; None if reading them is expensive."""
    stored = getattr(result, "storage_data", None)
    if isinstance(stored, dict):
        return sum(part.length for part in stored.values()) if len(stored) <= ITEMS_MAX else None
    try:
        return os.path.getsize(path) if file is None and os.path.isfile(path) else file.tell()
    except (OSError, ValueError, AttributeError):
        return None


def root_cause(error, rank):
    """Returns this rank's own failure among those of several ranks, else the first."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        own = failures.get(rank) or next(iter(failures.values()))
        if isinstance(own, tuple) and own and isinstance(own[0], BaseException):
            return own[0]
    return error


def said(error):
    try:
        return str(error)
    except Exception:  # an exception class whose __str__ fails
        return ""


def free_bytes(path):
    """Returns the free space at a failed save: torch does not report that the disk was full."""
    try:
        system = os.statvfs(os.path.dirname(path))
    except OSError:
        return None
    return system.f_bavail * system.f_frsize
