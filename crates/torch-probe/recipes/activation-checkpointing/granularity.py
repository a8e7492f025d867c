"""The parts of the model that are checkpointed.

    none            nothing
    block           each block: its input is kept, everything inside it is computed again
    every=N         each N-th block: between `none` and `block` in memory and in time
    sequential=N    the blocks in N pieces, each piece's input is kept; the last piece is not checkpointed, its backward pass comes at once
"""

import argparse
import functools
from dataclasses import dataclass

from torch.utils.checkpoint import checkpoint, checkpoint_sequential

KINDS = "none, block, every=N or sequential=N"


@dataclass(frozen=True)
class Granularity:
    kind: str
    count: int = 0

    def __str__(self):
        return f"{self.kind}={self.count}" if self.count else self.kind

    def problem(self, layers):
        """Returns why it is not possible for this number of blocks, or None."""
        if self.kind == "every" and not 1 <= self.count <= layers:
            return f"{self}: there are {layers} blocks, so N is 1 to {layers}"
        if self.kind == "sequential" and not 2 <= self.count <= layers:
            return f"{self}: {layers} blocks make 2 to {layers} pieces, and one piece alone would not be checkpointed"
        return None

    def apply(self, model):
        """Changes the model in place, without new names: the keys of the state_dict do not change."""
        if self.kind == "sequential":
            blocks = list(model.blocks)
            model.through_blocks = lambda x: checkpoint_sequential(blocks, self.count, x, use_reentrant=False)
        else:
            step = {"none": 0, "block": 1, "every": self.count}[self.kind]
            for block in list(model.blocks)[step - 1 :: step] if step else ():
                # With the random state of the first run (preserve_rng_state): dropout drops the same values again.
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=True)


NONE = Granularity("none")
BLOCK = Granularity("block")


def parse(text):
    if text in ("none", "block"):
        return Granularity(text)
    kind, equals, count = text.partition("=")
    if kind not in ("every", "sequential") or not equals or not count.isdecimal() or int(count) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {KINDS}, with N a whole number from 1 on")
    return Granularity(kind, int(count))
