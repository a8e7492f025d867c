"""A checkpoint as the nested state it was saved from, in the host's memory.

Every rank reads by itself, without a collective, and only the keys it asks for. What DCP stores flat is nested again as it was,
but for two things that DCP does: every dictionary key is a string now, so `optimizer.load_state_dict` wants its numbers back, and a
dictionary that was empty is not there.
"""

import inspect
import io
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from . import folders


def load(path, keys=None):
    """Reads a complete checkpoint. `keys`: only what lies under these ("model", "ranks.0"); those that it lacks are left out.

    Raises ValueError for one that is not complete. For use by whole, unsharded training states: a model that no single host's memory
    holds is loaded by `torch.distributed.checkpoint.load` into its shards, from the same folder.
    """
    wrong = folders.problem(path)
    if wrong:
        raise ValueError(f"{path} is no complete checkpoint: {wrong}")
    reader = dcp.FileSystemReader(path)
    metadata = reader.read_metadata()
    flat = {key: _room(entry) for key, entry in metadata.state_dict_metadata.items() if _wanted(key, keys)}
    # Before torch 2.6 or so, loading without a collective cannot be asked for: there every rank has to call this alike.
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.load).parameters else {}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)  # it is flat already
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # that is what was asked for
        dcp.load(flat, storage_reader=reader, planner=planner, **alone)
    nested = {}
    for key, value in flat.items():
        _put(nested, (metadata.planner_data or {}).get(key, (key,)), value)
    return nested


def _wanted(key, keys):
    return keys is None or any(key == wanted or key.startswith(f"{wanted}.") for wanted in keys)


def _room(entry):
    if isinstance(entry, TensorStorageMetadata):
        return torch.empty(entry.size, dtype=entry.properties.dtype)
    return io.BytesIO()


def _put(nested, path, value):
    *inner, last = path
    here = nested
    for key, following in zip(inner, path[1:]):
        fresh = {} if isinstance(following, str) else []
        here = _slot(here, key, fresh)
    _slot(here, last, value)


def _slot(container, key, fresh):
    """What stands at `key`, put there if nothing does."""
    if isinstance(container, dict):
        return container.setdefault(key, fresh)
    while len(container) <= key:
        container.append(None)
    if container[key] is None:
        container[key] = fresh
    return container[key]
