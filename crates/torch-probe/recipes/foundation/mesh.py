"""Arranges ranks in a line, or in rows and columns, and prints the mesh; Lockstep observes its creation."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from . import group
from .group import local_world_size, say, world_size


def make(device, **sizes):
    """make(device, data=2, tensor=4): the last dimension is that of neighbouring ranks, which share a node."""
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    group.kept.append(mesh)
    say(f"mesh {axes(sizes, sizes.values())}: ranks {mesh.mesh.tolist()}")
    return mesh


def in_words(mesh):
    """Describes the mesh. It must be the same for a checkpoint's random numbers to belong to the same ranks."""
    if mesh is None:
        return f"ranks={dist.get_world_size()}"
    return axes(mesh.mesh_dim_names, mesh.mesh.shape)


def axes(names, sizes):
    return " x ".join(f"{name}={size}" for name, size in zip(names, sizes))


def rows(ranks, per_row, what):
    """Returns the number of rows for `ranks`; refuses a number that does not fit."""
    if ranks % per_row:
        raise SystemExit(f"{ranks} ranks cannot be put into {what} of {per_row}: choose a number that divides {ranks}")
    return ranks // per_row


def neighbours():
    """Returns the default number of ranks in a group: those of a node, or half of them if there is only one node."""
    local, world = local_world_size(), world_size()
    if local == world and local % 2 == 0 and local > 2:
        return local // 2
    return local
