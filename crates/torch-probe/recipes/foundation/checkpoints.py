"""Sharded checkpoints: `DIR/step-000120/`, written through DCP by all ranks together, and `DIR/latest`, the name of the newest.

`lockstep_checkpoint` writes them: they are complete or absent. DCP reads sharded tensors directly into each rank's shards; a rank never
holds more than its own shards.
"""

import os
import sys

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

try:
    import lockstep_checkpoint
except ImportError:  # not in a run of Lockstep, which has it on PYTHONPATH: it is in the folder of the recipes
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "inject"))
    import lockstep_checkpoint


def save(training, folder):
    return lockstep_checkpoint.save(training.state(), folder, training.step, epoch=training.data.sampler.epoch, val_loss=training.val_loss)


def choose(asked, folder):
    """Returns the path to resume from, or None to start from the beginning. `latest` without a checkpoint starts; a path without a complete
    checkpoint is an error."""
    if asked == "latest":
        # All ranks must resume from the same checkpoint: rank 0 finds it.
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
    """Restores the checkpoint, on all ranks together. Returns whether training continues exactly."""
    weights = training.weights()
    try:
        dcp.load(weights, storage_reader=dcp.FileSystemReader(path))
    except dcp.api.CheckpointException as failure:
        cause = next(iter(failure.failures.values()))[0]
        raise SystemExit(f"cannot go on from {path}: does it hold a model of another size? {cause}") from failure
    # Also rank 0's part: a rank that did not exist at the save uses its position in the data.
    rest = lockstep_checkpoint.load(path, keys=("progress", "ranks.0", f"ranks.{dist.get_rank()}"))
    return training.put_back(weights, rest)
