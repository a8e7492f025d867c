"""The entry point: `save(state, folder, step)`. Every rank calls it with the same arguments, like DCP's own save."""

import os
import shutil
import warnings

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from . import folders
from .space import NotEnoughSpace
from .writer import About, SparingWriter

# Number of model-only saves per folder since its last full one, in this process. Every rank calls save equally often, so all ranks have the
# same count without communication.
_since_full = {}


class SaveFailed(RuntimeError):
    """A save that failed. Earlier checkpoints are unchanged; the incomplete one is removed."""


def save(state, folder, step, *, epoch=None, val_loss=None, full_every=1, full=None, model_keys=("model",), frozen=(), link=True, process_group=None):
    """Saves `state` as `folder/step-STEP/`. Returns that path when every rank's part is on the disk.

    state          nested dictionary of tensors (sharded ones too) and small objects, as for `torch.distributed.checkpoint.save`
    folder         of all checkpoints of the run, the same disk for all ranks
    full_every     N: between two full saves, N-1 contain only `model_keys`, for evaluation, not for a resume. The first is full
    full           overrides this for one save, such as the last one before a stop
    model_keys     the top-level keys of a model-only save
    frozen         keys ("model.embed.weight") of tensors that will not change: without it the second save detects them
    link           False writes every file, for comparisons

    Raises NotEnoughSpace on every rank, before a byte is written, when the disk cannot hold it, and SaveFailed when any rank's part
    failed. Neither moves `latest`. When a rank dies instead, the others get what their collective raises then.
    """
    place = os.path.abspath(folder)
    is_full = full if full is not None else _since_full.get(place, full_every) >= full_every - 1
    about = About(step, epoch, val_loss, "full" if is_full else "model")
    writer = SparingWriter(place, about, frozen, link)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a single process may save too
            dcp.save(_chosen(state, is_full, model_keys), storage_writer=writer, process_group=process_group)
    except CheckpointException as failure:
        _abandon(writer)
        raise _plain(failure, step) from failure
    _since_full[place] = 0 if is_full else _since_full[place] + 1
    return str(writer.path)


def _chosen(state, is_full, model_keys):
    """Puts the model first in both kinds of save: DCP distributes replicated tensors over the ranks in this order, and a tensor that the
    same rank gets in each save can share its file."""
    model = {key: state[key] for key in model_keys if key in state}
    if not model and not is_full:
        raise KeyError(f"a model-only save needs one of the keys {', '.join(model_keys)}; the state has {', '.join(state)}")
    return {**model, **{key: value for key, value in state.items() if key not in model}} if is_full else model


def _abandon(writer):
    """Removes an incomplete checkpoint. All ranks have answered, so none writes any more, and the next save may need the space."""
    if writer.made and not os.path.exists(os.path.join(writer.made, folders.METADATA)):
        shutil.rmtree(writer.made, ignore_errors=True)


def _plain(failure, step):
    """Returns one sentence instead of a table of tracebacks; those stay in its cause."""
    causes = {rank: cause for rank, (cause, _trace) in failure.failures.items()}
    for cause in causes.values():
        if isinstance(cause, NotEnoughSpace):
            return cause
    rank, cause = min(causes.items())
    others = f" (and of {len(causes) - 1} more)" if len(causes) > 1 else ""
    who = f"of rank {rank}{others}" if dist.is_initialized() else "of this process"
    return SaveFailed(f"step {step} is not saved: the part {who} failed: {type(cause).__name__}: {cause}")
