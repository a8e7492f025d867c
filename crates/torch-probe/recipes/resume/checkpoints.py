"""The recipe's checkpoints: their paths, how one is written, and from which one training continues.

    DIR/step-000120/            all of it, through DCP, by all ranks (lockstep_checkpoint)
    DIR/latest                  the name of the newest of those
    DIR/best.pth                the model with the lowest validation loss so far
    DIR/ckpt_3.pth              all of it in one file after epoch 3, with --plain: for tools that support only torch.load
    DIR/emergency-000127/       what each rank could save alone when training broke (emergency.py)
"""

import os

import emergency
import files
import torch.distributed as dist

import lockstep_checkpoint


def save(training, folder, arguments, full=None):
    state = {**training.shared(), "ranks": training.of_ranks()}
    return lockstep_checkpoint.save(
        state, folder, training.step, epoch=training.sampler.epoch, val_loss=training.val_loss,
        full_every=arguments.full_every, full=full, frozen=arguments.frozen, link=not arguments.no_link,
    )


def save_plain(training, folder):
    """Rank 0 writes one file per epoch. It gets the others' parts with a collective, so this cannot be used in an emergency."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, training.of_ranks())
    if dist.get_rank() == 0:
        ranks = {rank: state for part in parts for rank, state in part.items()}
        epoch = training.sampler.epoch
        files.write(os.path.join(folder, f"ckpt_{epoch}.pth"), {**training.shared(), "ranks": ranks, "epoch": epoch})


def save_best(training, folder):
    """Replaces the best model so far; only rank 0 writes, and no rank waits."""
    if dist.get_rank() == 0:
        best = {"model": training.model.state_dict(), "step": training.step, "val_loss": training.val_loss}
        files.write(os.path.join(folder, "best.pth"), {**best, "epoch": training.sampler.epoch})


def choose(asked, folder):
    """Returns the path to resume from, or None to start from the beginning. `latest` without a checkpoint starts; a missing path is an
    error."""
    if asked == "latest":
        # All ranks must resume from the same checkpoint: rank 0 finds it.
        found = [newest(folder) if folder and dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found)
        return found[0]
    if asked and not os.path.exists(asked):
        raise SystemExit(f"there is no checkpoint {asked} to go on from")
    return asked or None


def newest(folder):
    """Returns the newest state from which training can continue exactly: a full checkpoint, or an emergency checkpoint with the parts of
    all ranks."""
    regular = lockstep_checkpoint.newest(folder)
    emergencies = emergency.whole(folder)
    regular_ns = os.stat(os.path.join(regular, ".metadata")).st_mtime_ns if regular else 0
    if emergencies and emergency.finished_ns(emergencies[-1]) > regular_ns:
        return emergencies[-1]
    return regular


def load(path):
    """Returns the part of a checkpoint of any kind that this rank needs."""
    above = os.path.dirname(os.path.abspath(path))
    if os.path.isfile(path) and not emergency.is_one(above):
        return files.read(path)
    if os.path.isfile(path) or emergency.is_one(path):
        return emergency.load(above if os.path.isfile(path) else path)
    own = f"ranks.{dist.get_rank()}"
    # Also rank 0's part: a rank that did not exist at the save uses its position in the data.
    return lockstep_checkpoint.load(path, keys=("model", "optimizer", "scheduler", "progress", "ranks.0", own))
