"""Sharded training, as `fsdp2`, `hsdp` (a mesh of 2 x 2) or `fsdp1`: prints the true norm of each step's gradients, computed from all
ranks."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
if sys.argv[1] == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
else:
    from torch.distributed.fsdp import fully_shard

    shape = (2, dist.get_world_size() // 2) if sys.argv[1] == "hsdp" else (dist.get_world_size(),)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
    for part in (model[0], model[2]):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())


def true_norm():
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if sys.argv[1] == "fsdp1":
        square = sum((gradient.square().sum() for gradient in gradients), torch.zeros(()))
        dist.all_reduce(square)
        return square.sqrt()
    return torch.linalg.vector_norm(torch.stack([gradient.full_tensor().norm() for gradient in gradients]))


for step in range(6):
    optimizer.zero_grad()
    x = torch.randn(5, 6, generator=generator)
    (10 * model(x).square().mean()).backward()
    norm = true_norm()
    if step >= 3:  # the probe uses a norm that torch has computed
        clip = model.clip_grad_norm_ if "--own-clip" in sys.argv else lambda limit: torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        clip(0.01)
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step={step + 1} norm={norm.item():.9g}", flush=True)
dist.destroy_process_group()
