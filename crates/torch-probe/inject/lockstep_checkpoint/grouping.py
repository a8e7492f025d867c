"""Which tensors share a file.

A file can be linked from the checkpoint before only as a whole, so tensors that change and tensors that do not must not share one.
What does not change is not asked of the script: a tensor that equals the one in the checkpoint before is *still*, everything
else is *live*. So weights frozen for a while, adapters between frozen layers and tables that never move are all found; the first checkpoint of a
folder finds nothing, unless it is told (`frozen`), and the second writes the still ones once more, into files of their own.
"""

from dataclasses import dataclass

OWN_FILE_BYTES = 1 << 20  # a still tensor from this size on gets its own file; smaller ones share one, or there would be very many files


@dataclass(frozen=True)
class Group:
    """The items of one file."""

    items: list
    still: bool


def group(items, digests, earlier, frozen):
    """Splits a rank's write items into the groups that become its files. `digests`: of those items that have one, by index."""
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
    """Bytes of what this rank writes for the item: of its shard, where the tensor is sharded. None known for what is no tensor."""
    if item.tensor_data is None:
        return 0
    count = 1
    for size in item.tensor_data.chunk.sizes:
        count *= size
    return count * item.tensor_data.properties.dtype.itemsize
