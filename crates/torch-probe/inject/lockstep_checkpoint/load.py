"""Loads a checkpoint as the nested state that was saved, into host memory.

Each rank reads by itself, without a collective, and reads only the requested keys. DCP stores a flat state, which is nested again. Two
differences remain, caused by DCP: every dictionary key is a string, so `optimizer.load_state_dict` needs its numbers converted back, and
empty dictionaries are missing.
"""

import inspect
import io
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from . import folders


def load(path, keys=None):
    """Loads a complete checkpoint. `keys`: only what is below these ("model", "ranks.0"); keys that it lacks are left out.

    Raises ValueError if the checkpoint is not complete. Use it for whole, unsharded training states. A model that does not fit into the
    memory of one host must be loaded into its shards by `torch.distributed.checkpoint.load`, from the same folder.
    """
    wrong = folders.problem(path)
    if wrong:
        raise ValueError(f"{path} is no complete checkpoint: {wrong}")
    reader = dcp.FileSystemReader(path)
    metadata = reader.read_metadata()
    flat = {key: _room(entry) for key, entry in metadata.state_dict_metadata.items() if _wanted(key, keys)}
    # Before about torch 2.6, loading always uses a collective: every rank has to call this with the same arguments.
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.load).parameters else {}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)  # already flat
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended here
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
    """Returns the value at `key`; inserts `fresh` if there is none."""
    if isinstance(container, dict):
        return container.setdefault(key, fresh)
    while len(container) <= key:
        container.append(None)
    if container[key] is None:
        container[key] = fresh
    return container[key]
