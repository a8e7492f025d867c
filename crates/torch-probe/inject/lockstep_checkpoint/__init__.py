"""Checkpoints that are either complete or absent, and that write unchanged tensors only once. Standard library and torch only.

    import lockstep_checkpoint

    lockstep_checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "/ckpt", step)
    path = lockstep_checkpoint.newest("/ckpt")
    state = lockstep_checkpoint.load(path)

A checkpoint is a folder of PyTorch's own distributed checkpoint format (DCP): anything that reads DCP reads it. README.md says what is
added. On a managed run the package is on PYTHONPATH. The parts:

    save.py      the entry: what is saved, and what a failed save leaves behind (nothing)
    writer.py    DCP's file writer, with files that are linked instead of written, and `lockstep.json`
    grouping.py  which tensors share a file
    content.py   the digest of a tensor, and the comparison with a stored one
    space.py     the free-space check
    folders.py   step folders: names, whether one is complete, the newest, `latest`
    load.py      a checkpoint as an ordinary nested state
    durable.py   files that survive a power cut
"""

from .folders import complete, model_only, newest, problem
from .load import load
from .save import SaveFailed, save
from .space import NotEnoughSpace

__all__ = ["NotEnoughSpace", "SaveFailed", "complete", "load", "model_only", "newest", "problem", "save"]
