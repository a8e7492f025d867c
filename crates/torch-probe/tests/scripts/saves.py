"""Saves in every way that the probe watches, and in some that it must ignore."""

import io
import os
import pickle

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import save  # a name of the script's own

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    optimizer.zero_grad()
    model(torch.ones(2, 256)).square().mean().backward()
    optimizer.step()


step()
save(model.state_dict(), f"plain-{rank}.pt")
step()
with open(f"file-{rank}.pt", "wb") as file:
    torch.save(obj=model.state_dict(), f=file)
torch.save(model.state_dict(), io.BytesIO())
step()
assert pickle.loads(pickle.dumps(torch.save)) is save
dcp.save({"model": model.state_dict()}, checkpoint_id="step-3")
step()
future = dcp.async_save({"model": model.state_dict()}, checkpoint_id="step-4")
future.result()
step()
try:
    torch.save(model.state_dict(), f"no/such/folder/{rank}.pt")
except RuntimeError as error:
    assert "no/such/folder" in str(error), error
try:
    torch.save(model.state_dict(), "/dev/full")
except RuntimeError:
    pass
step()
print(f"rank {rank} in {os.getcwd()}", flush=True)
dist.destroy_process_group()
