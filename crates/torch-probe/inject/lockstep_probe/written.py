"""Records which files a save wrote, for the agent: it removes a checkpoint only if each of its files is named here (or in our sidecar).

One JSON line per save in `saves/RANK.jsonl`, in the attempt's folder, beside the probe's socket:

    {"v":1,"path":"/ckpt/step-100","files":[["__0_0.distcp",DEVICE,INODE,BYTES,MTIME_NS,LINKS,EXACT],...]}

A file's name is relative to `path`, and empty for `path` itself. A file is known by its device and inode, because careful scripts save
under a temporary name and rename. EXACT is false when the file is still open: its last bytes are not written yet, so its time of
change may still change a little; BYTES is then the position in the file.

A file and not a datagram: one save may write thousands of files, and the agent may be down for hours. The agent removes the file
once it has read it. A save that cannot be recorded is lost, and Lockstep never removes its checkpoint.
"""

import json
import os
import re
import stat

FOLDER = "saves"
FILE_BYTES_MAX = 16 << 20  # of lines that no agent has read: hours of saves by a large run; later saves are not recorded
FILES_MAX = 4096  # per save; a larger one is not recorded
METADATA = ".metadata"  # of all ranks, written last; `__RANK.metadata` if a rank saves without collectives
EMPTY_SHARD = re.compile(r"__\d+_\d+\.distcp")  # DCP creates one for a rank that has nothing to save, and does not name it anywhere


class Written:
    """Records the files of this rank's saves."""

    def __init__(self, socket_path, rank, local_rank):
        folder = os.path.dirname(os.path.abspath(socket_path))
        self._path = os.path.join(folder, FOLDER, f"{rank}.jsonl")
        self._rank, self._local_rank = rank, local_rank

    def note_file(self, path, file):
        """Records a save to one file: `file` is the open file object, or None if the script passed a path."""
        if file is None:
            self._note(path, [identity("", os.stat(path), True)])
            return
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            name, device, inode, _, changed_ns, links, _ = identity("", found, False)
            self._note(path, [[name, device, inode, file.tell(), changed_ns, links, False]])

    def note_folder(self, path, result, writer, alone):
        """Records a distributed save. All its ranks know the names of all its files, so one rank per node records them.

        `alone`: this rank saves without the others, or with some of them. Only files that the save itself names are recorded, and empty
        shards: other files in the folder belong to someone else.
        """
        stored = getattr(result, "storage_data", None)
        if not isinstance(stored, dict) or "://" in path or not (alone or self._local_rank == 0):
            return
        names = {getattr(where, "relative_path", None) for where in stored.values()} - {None}
        names.update((METADATA, f"__{self._rank}{METADATA}"), getattr(writer, "files_beside", ()))
        if len(names) > FILES_MAX:
            return
        with os.scandir(path) as entries:
            for count, entry in enumerate(entries):
                if count >= FILES_MAX:
                    return
                if is_empty_shard(entry):
                    names.add(entry.name)
        self._note(path, [found for name in sorted(names) if (found := at(path, name))])

    def _note(self, path, files):
        line = json.dumps({"v": 1, "path": path, "files": files}, ensure_ascii=False, separators=(",", ":")) + "\n"
        data = line.encode("utf-8")  # a name that is not valid text raises an error: it is not recorded
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        out = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(out).st_size + len(data) <= FILE_BYTES_MAX:
                os.write(out, data)
        finally:
            os.close(out)


def at(folder, name):
    """Returns a file of the folder, or None if it is missing or not a regular file."""
    try:
        found = os.lstat(os.path.join(folder, name))
    except OSError:
        return None
    return identity(name, found, True) if stat.S_ISREG(found.st_mode) else None


def identity(name, found, exact):
    return [name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_nlink, exact]


def is_empty_shard(entry):
    return bool(EMPTY_SHARD.fullmatch(entry.name)) and entry.stat(follow_symlinks=False).st_size == 0
