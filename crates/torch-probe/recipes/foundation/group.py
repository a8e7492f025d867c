"""The process group that torchrun describes, and who speaks in it."""

import contextlib
import gc
import os
import traceback

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions hold the one that is there when they are made, and an optimizer imports them


@contextlib.contextmanager
def joined():
    """Joins the group, with NCCL where each rank has a GPU and Gloo on CPUs, and gives the device this rank trains on."""
    device = own_device()
    dist.init_process_group(backend(device))
    well = False
    try:
        yield device
        well = True
    except SystemExit as end:  # a stop: it comes between two steps, where nothing is under way
        let_go(end)
        raise
    finally:
        # With a peer gone, NCCL's own teardown may wait for collectives that will never finish: leave that to the process exit.
        if well or device.type != "cuda":
            leave()


def let_go(end):
    """Lets go of what the functions that the exception came through still hold, like the model."""
    while end is not None:
        traceback.clear_frames(end.__traceback__)
        end = end.__context__


kept = []  # meshes, which torch keeps in caches of its own, and with them their groups


def leave():
    """Ends the group and Gloo's threads with it; what stands on it, like a DDP model, is to be gone before.

    Those threads end with the last who holds the group. One of them that lets go of a tensor of ours while Python is ending would take the process
    down (SIGABRT), though all of its work is done: so nobody may hold the group on.

    Before torch 2.8 who lets go of a group last waits for Gloo's threads without giving way to them (pytorch/pytorch#154976). One that is letting go
    of a tensor of ours just then waits for Python, and both wait for ever. Who lets go of a group's backend gives way, so here those go last.
    """
    gc.collect()  # a model may be part of a circle
    for mesh in kept:
        getattr(mesh, "_pg_registry", {}).clear()
    backends = []
    if torch_is_before(2, 8):
        groups = dist.distributed_c10d._world.pg_map.items()
        backends = [group._get_backend(torch.device("cpu")) for group, (name, _) in groups if "gloo" in name]
    dist.destroy_process_group()
    backends.clear()


def own_device():
    """This rank's own GPU where its node has enough for all of its ranks, else the CPU."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return torch.device("cpu")


def backend(device):
    return "nccl" if device.type == "cuda" else "gloo"


def torch_is_before(*release):
    return tuple(map(int, torch.__version__.split(".")[:2])) < release


def world_size():
    """Also before the group is joined: what does not fit it is refused before anybody waits for anybody."""
    return int(os.environ["WORLD_SIZE"])


def local_world_size():
    return int(os.environ["LOCAL_WORLD_SIZE"])


def say(line):
    """Said once for all ranks."""
    if dist.get_rank() == 0:
        print(line, flush=True)
