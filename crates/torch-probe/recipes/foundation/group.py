"""The process group that torchrun describes, and who speaks in it."""

import contextlib
import os

import torch
import torch.distributed as dist


@contextlib.contextmanager
def joined():
    """Joins the group and gives the device this rank trains on: its own GPU with NCCL where there are enough, else the CPU with Gloo."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        dist.init_process_group("gloo")
    well = False
    try:
        yield device
        well = True
    finally:
        # With a peer gone, NCCL's own teardown may wait for collectives that will never finish: leave that to the process exit.
        if well or device.type != "cuda":
            dist.destroy_process_group()


def world_size():
    """Also before the group is joined: what does not fit it is refused before anybody waits for anybody."""
    return int(os.environ["WORLD_SIZE"])


def local_world_size():
    return int(os.environ["LOCAL_WORLD_SIZE"])


def say(line):
    """Said once for all ranks."""
    if dist.get_rank() == 0:
        print(line, flush=True)
