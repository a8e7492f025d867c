"""Mixed precision's GradScaler on CPU: the first two steps overflow and are skipped, the others are clipped after unscaling."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(6):
    x = torch.ones(2, 4)
    loss = model(x).square().mean() + (float("inf") * model(x).mean() if step < 2 else 3.0)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    scaler.step(optimizer)
    scaler.update()
    if step > 1 and dist.get_rank() == 0:
        print(f"loss={loss.item():.6f}", flush=True)
dist.destroy_process_group()
