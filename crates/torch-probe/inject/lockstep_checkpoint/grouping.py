"""Decides which tensors share a file.

Only whole files can be linked from the previous checkpoint, so changing and unchanged tensors must not share a file. The script does not
need to say what changes: a tensor that equals the one in the previous checkpoint is *still*, everything else is *live*. This finds weights
that are frozen for a while, adapters between frozen layers, and tables that never change. The first checkpoint of a folder has no still
tensors, unless `frozen` names them. The second one writes the still tensors once more, into separate files.
"""

from dataclasses import dataclass

OWN_FILE_BYTES = 1 << 20  # a still tensor of at least this size gets its own file; smaller ones share one, to limit the number of files


@dataclass(frozen=True)
class Group:
    """The items of one file."""

    items: list
    still: bool


def group(items, digests, earlier, frozen):
    """Splits a rank's write items into groups, one per file. `digests`: by index, for items that have one."""
    still = [item for item in items if item.index in digests and is_still(item, digests[item.index], earlier, frozen)]
    chosen = {item.index for item in still}
    live = [item for item in items if item.index not in chosen]
    small = [item for item in still if item_bytes(item) < OWN_FILE_BYTES]
    large = [item for item in still if item_bytes(item) >= OWN_FILE_BYTES]
    groups = [Group(live, still=False), Group(small, still=True), *(Group([item], still=True) for item in large)]
    return [group for group in groups if group.items]


def is_still(item, digest, earlier, frozen):
    return item.index.fqn in frozen or earlier.digest_of(item.index) == digest


def item_bytes(item):
    """Returns the bytes that this rank writes for the item: those of its shard if the tensor is sharded. Unknown if it is not a tensor."""
    if item.tensor_data is None:
        return 0
    count = 1
    for size in item.tensor_data.chunk.sizes:
        count *= size
    return count * item.tensor_data.properties.dtype.itemsize
