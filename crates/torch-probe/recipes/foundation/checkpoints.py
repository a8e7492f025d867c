"""Sharded checkpoints: `DIR/step-000120/`, written through DCP by all ranks together, and `DIR/latest`, the name of the newest.

`lockstep_checkpoint` writes them: whole or not there. What is sharded is read back by DCP straight into each rank's shards; a rank
never holds more than its own.
"""

import os
import sys

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

try:
    import lockstep_checkpoint
except ImportError:  # not on a run of Lockstep's, which has it on PYTHONPATH: it lies beside the recipes
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "inject"))
    import lockstep_checkpoint


def save(training, folder):
    return lockstep_checkpoint.save(training.state(), folder, training.step, epoch=training.data.sampler.epoch, val_loss=training.val_loss)


def choose(asked, folder):
    """The path to go on from, or None to begin. `latest` that finds nothing begins; a path that is no whole checkpoint is a mistake."""
    if asked == "latest":
        # All ranks must go on from the same one: rank 0 looks.
        found = [lockstep_checkpoint.newest(folder) if folder and dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found)
        return found[0]
    if not asked:
        return None
    wrong = lockstep_checkpoint.problem(asked) if os.path.isdir(asked) else "there is no such folder"
    if wrong:
        raise SystemExit(f"cannot go on from {asked}: {wrong}")
    return asked


def load(training, path):
    """Puts the checkpoint back, by all ranks together. Returns whether training goes on exactly."""
    weights = training.weights()
    try:
        dcp.load(weights, storage_reader=dcp.FileSystemReader(path))
    except dcp.api.CheckpointException as failure:
        cause = next(iter(failure.failures.values()))[0]
        raise SystemExit(f"cannot go on from {path}: does it hold a model of another size? {cause}") from failure
    # Rank 0's part too: its position in the data serves a rank that was not there when this was saved.
    rest = lockstep_checkpoint.load(path, keys=("progress", "ranks.0", f"ranks.{dist.get_rank()}"))
    return training.put_back(weights, rest)
