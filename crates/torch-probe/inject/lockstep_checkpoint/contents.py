"""`contents.json`: which tensors each file of a checkpoint holds, and their digests. The next save reads it to find what it can link.

    {"version": 1, "files": {"__0_10.distcp": {"still": false, "items": [[KEY, OFFSETS or null, DIGEST or null, AT, LENGTH], …]}, …}}

OFFSETS place a shard in its tensor; AT and LENGTH place the saved item in the file, in bytes.
"""

import json
import os
from collections import namedtuple

from .folders import CONTENTS

VERSION = 1
Item = namedtuple("Item", "key offsets digest at length")


class Contents:
    """The contents of one checkpoint, found by tensor and by set of tensors."""

    def __init__(self, folder=None, files=None):
        self.folder = folder
        self._files = files or {}
        self._digests = {place_of(item): item.digest for entry in self._files.values() for item in entry["items"]}
        still = {name: entry["items"] for name, entry in self._files.items() if entry["still"]}
        self._still = {place_of(item) for items in still.values() for item in items}
        self._by_set = {frozenset((place_of(item), item.digest) for item in items): name for name, items in still.items()}

    def digest_of(self, index):
        return self._digests.get(place(index))

    def can_be_linked(self, index):
        """Returns True if the item is in a file that the next checkpoint can share if the tensor has not changed."""
        return place(index) in self._still

    def file_with(self, digests):
        """Returns name and items (by place) of the still file with exactly these tensors, or None. `digests`: by index."""
        name = self._by_set.get(frozenset((place(index), digest) for index, digest in digests.items()))
        return name and (name, {place_of(item): item for item in self._files[name]["items"]})


def place(index):
    """Returns the name of a tensor or shard, which is the same in every checkpoint."""
    return index.fqn, None if index.offset is None else tuple(index.offset)


def place_of(item):
    return item.key, None if item.offsets is None else tuple(item.offsets)


def read(folder):
    """Reads the contents of a checkpoint. Returns empty contents if there are none, or none that this version can read: then nothing is
    linked."""
    if folder is None:
        return Contents()
    try:
        with open(os.path.join(folder, CONTENTS), encoding="utf-8") as file:
            said = json.load(file)
        if said["version"] != VERSION:
            return Contents()
        files = {
            name: {"still": entry["still"], "items": [Item(*item) for item in entry["items"]]}
            for name, entry in said["files"].items()
        }
        return Contents(folder, files)
    except (OSError, ValueError, KeyError, TypeError):
        return Contents()


def describe(results):
    """Returns the text of `contents.json` for the results of a save."""
    files = {}
    for result in results:
        entry = files.setdefault(result.storage_data.relative_path, {"still": result.still, "items": []})
        offsets = None if result.index.offset is None else list(result.index.offset)
        entry["items"].append(
            Item(result.index.fqn, offsets, result.digest, result.storage_data.offset, result.storage_data.length)
        )
    return json.dumps({"version": VERSION, "files": files})
