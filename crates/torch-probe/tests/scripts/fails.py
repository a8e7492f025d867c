"""The last rank fails after its third step, after a library has put an excepthook of its own in place."""

import os
import sys

import torch

if "--own-hook" in sys.argv:
    sys.excepthook = lambda kind, value, trace: sys.__excepthook__(kind, value, trace)
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(3):
    parameter.square().sum().backward()
    optimizer.step()
if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    raise ValueError("the tenth shard is missing: " + "ä\n" * 2000)
