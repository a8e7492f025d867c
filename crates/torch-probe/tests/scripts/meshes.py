"""Creates meshes as the command line says, and prints this rank's position in the one for training."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

kind = sys.argv[1]
dist.init_process_group("gloo")
world = dist.get_world_size()
if kind == "named":
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    mesh["shard"]
    init_device_mesh("cpu", (world,), mesh_dim_names=("world",))
elif kind == "by-hand":
    init_device_mesh("cpu", (world,))
    mesh = DeviceMesh("cpu", torch.arange(world).flip(0).view(2, -1, 1))
elif kind == "part":
    mesh = DeviceMesh("cpu", [0, 1], mesh_dim_names=("pair",))
print(f"rank {dist.get_rank()} at {mesh.get_coordinate()}", flush=True)
dist.destroy_process_group()
