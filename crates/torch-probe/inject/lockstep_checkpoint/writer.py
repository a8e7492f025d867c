"""DCP's file writer with links: a file whose tensors all equal those of a file in the previous checkpoint becomes a link to it.

Runs inside DCP's own four steps and adds no communication between ranks:

    every rank      plan          what it holds
    coordinator     global plan   creates a folder, finds the previous checkpoint, checks the free space     → or all ranks fail
    every rank      write         digests, groups, links or writes; flushes files and folder
    coordinator     finish        contents.json, lockstep.json, .metadata (DCP's, by rename), lockstep.json again, then `latest`

A process that dies in between leaves a folder without `.metadata`, which no reader uses as a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from pathlib import Path

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import content, contents, durable, folders, space
from .grouping import group

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Place:
    """The folder of a rank: chosen by the coordinator, sent in the plan. DCP reads its `prefix`."""

    prefix: str
    folder: str
    before: str | None


@dataclasses.dataclass(frozen=True)
class Written(WriteResult):
    """DCP's result of one item, with the fields for our sidecars."""

    digest: str | None = None
    still: bool = False
    shared: str | None = None


@dataclasses.dataclass(frozen=True)
class About:
    """The caller's metadata of the checkpoint."""

    step: int
    epoch: int | None
    val_loss: float | None
    content: str


class SparingWriter(FileSystemWriter):
    # Files of a checkpoint that DCP did not write, for the probe that notes the files of a save.
    files_beside = (folders.CONTENTS, folders.SIDECAR)

    def __init__(self, parent, about, frozen=(), link=True):
        # The most likely folder, for observers of saves; the coordinator makes the final choice.
        super().__init__(os.path.join(parent, folders.name(about.step)))
        self.parent = str(parent)
        self.about = about
        self.frozen = frozenset(frozen)
        self.link = link
        self.made = None

    # === called by DCP ===

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        os.makedirs(self.parent, exist_ok=True)
        before = folders.newest(self.parent, full=False) if self.link else None
        space.check(self.parent, plans, contents.read(before))
        self.made = folders.create(self.parent, self.about.step)
        return [
            dataclasses.replace(plan, storage_data=Place(f"__{rank}_", self.made, before)) for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan, planner):
        place = plan.storage_data
        self.path = Path(place.folder)
        earlier = contents.read(place.before)
        digests = self._digests(plan, planner)
        results = []
        for number, files in enumerate(group(plan.items, digests, earlier, self.frozen), start=1):
            # DCP appends its own count, which is 0 for each of these calls.
            prefix = f"{place.prefix}{number}"
            linked = self._link(files, f"{prefix}0.distcp", planner, digests, earlier) if files.still else None
            results += linked or self._write(files, dataclasses.replace(place, prefix=prefix), plan, planner, digests)
        durable.sync_folder(place.folder)
        done = Future()
        done.set_result(results)
        return done

    def finish(self, metadata, results):
        written = [result for results_of_rank in results for result in results_of_rank]
        durable.write(os.path.join(self.made, folders.CONTENTS), contents.describe(written))
        sidecar, said = os.path.join(self.made, folders.SIDECAR), self._sidecar(written, world_size=len(results))
        durable.write(sidecar, json.dumps(said, indent=1))
        super().finish(metadata, results)
        # The checkpoint is complete. This adds the inodes of all files, including .metadata. Lockstep needs them only to remove the
        # checkpoint later.
        with contextlib.suppress(OSError):
            durable.write(sidecar, lambda inode: json.dumps({**said, **self._proof(said["files"], inode)}, indent=1))
        durable.sync_folder(self.made)
        durable.sync_folder(self.parent)
        if self.about.content == "full":
            folders.point_latest(self.made)

    # === ours ===

    def _digests(self, plan, planner):
        tensors = (item for item in plan.items if item.type != WriteItemType.BYTE_IO)
        found = {item.index: content.digest(planner.resolve_data(item)) for item in tensors}
        return {index: digest for index, digest in found.items() if digest is not None}

    def _link(self, files, name, planner, digests, earlier):
        """Links the earlier file with these tensors. Returns None if there is none, it is damaged, or the disk cannot link."""
        found = earlier.file_with({item.index: digests[item.index] for item in files.items})
        if not found:
            return None
        source, stored = os.path.join(earlier.folder, found[0]), found[1]
        shared = f"{os.path.basename(earlier.folder)}/{found[0]}"
        results = []
        try:
            for item in files.items:
                at = stored[contents.place(item.index)]
                if not content.same_as_stored(planner.resolve_data(item), source, at.at, at.length):
                    return None
                where = _StorageInfo(name, at.at, at.length)
                results.append(Written(item.index, at.length, where, digests[item.index], still=True, shared=shared))
            os.link(source, self.path / name)
        # torch's errors for a damaged file have no common class. Writing the tensors again is right in every case.
        except Exception:  # noqa: BLE001
            return None
        return results

    def _write(self, files, place, plan, planner, digests):
        own = dataclasses.replace(plan, items=files.items, storage_data=place)
        try:
            results = super().write_data(own, planner).wait()
        except Exception as failure:
            said = disk_error(failure)
            if said is None:
                raise
            raise OSError(said.errno, said.strerror, place.folder) from failure
        return [
            Written(result.index, result.size_in_bytes, result.storage_data, digests.get(result.index), still=files.still)
            for result in results
        ]

    def _proof(self, files, inode):
        """Returns which run wrote the checkpoint, and the inodes of its folder and its files.

        A copy of the folder has other inodes, so it proves nothing. If it consists of hard links, only its folder has another inode.
        """
        identities = {}
        for name in [*files, folders.METADATA]:
            found = os.lstat(os.path.join(self.made, name))
            identities[name] = [found.st_ino, found.st_size, found.st_mtime_ns]
        folder = os.stat(self.made).st_ino
        return {"run": os.environ.get("LOCKSTEP_RUN"), "inode": inode, "folder": folder, "inodes": identities}

    def _sidecar(self, written, world_size):
        names = sorted({result.storage_data.relative_path for result in written}) + [folders.CONTENTS]
        val_loss = self.about.val_loss
        return {
            "version": VERSION,
            "step": self.about.step,
            "epoch": self.about.epoch,
            "content": self.about.content,
            "val_loss": val_loss if val_loss is not None and math.isfinite(val_loss) else None,
            "world_size": world_size,
            "files": {name: os.path.getsize(os.path.join(self.made, name)) for name in names},
            "shared": {result.storage_data.relative_path: result.shared for result in written if result.shared},
        }


def disk_error(failure):
    """Returns the disk's error that torch hides; for a full disk torch says only `unexpected pos 704 vs 598`. None if there is none."""
    while failure is not None and not isinstance(failure, OSError):
        failure = failure.__cause__ or failure.__context__
    return failure
