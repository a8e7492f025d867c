"""The process group that torchrun describes, and the output of its ranks."""

import contextlib
import gc
import os
import traceback

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group exists: its functions keep the group of their creation, and an optimizer imports them


@contextlib.contextmanager
def joined():
    """Joins the group, with NCCL if each rank has a GPU and Gloo on CPUs. Yields the device of this rank."""
    device = own_device()
    dist.init_process_group(backend(device))
    well = False
    try:
        yield device
        well = True
    except SystemExit as end:  # a stop: it happens between two steps, when no operation is active
        let_go(end)
        raise
    finally:
        # If a peer is gone, NCCL's own teardown may wait for collectives that never finish: the process exit ends them.
        if well or device.type != "cuda":
            leave()


def let_go(end):
    """Frees what the functions in the exception's traceback still reference, such as the model."""
    while end is not None:
        traceback.clear_frames(end.__traceback__)
        end = end.__context__


kept = []  # meshes, which torch keeps in its own caches, together with their groups


def leave():
    """Destroys the group and with it Gloo's threads. Objects that use it, such as a DDP model, must be gone before.

    Those threads end when the last reference to the group is freed. A thread that frees a tensor while Python is ending would abort the
    process (SIGABRT), although all work is done. So no reference to the group may remain.

    Before torch 2.8, freeing the last reference to a group waits for Gloo's threads without releasing the GIL (pytorch/pytorch#154976). A
    thread that frees a tensor at that moment waits for the GIL: a deadlock. Freeing a group's backend releases the GIL, so backends are
    freed last here.
    """
    gc.collect()  # a model may be part of a reference cycle
    for mesh in kept:
        getattr(mesh, "_pg_registry", {}).clear()
    backends = []
    if torch_is_before(2, 8):
        groups = dist.distributed_c10d._world.pg_map.items()
        backends = [group._get_backend(torch.device("cpu")) for group, (name, _) in groups if "gloo" in name]
    dist.destroy_process_group()
    backends.clear()


def own_device():
    """Returns this rank's own GPU if its node has enough for all of its ranks, else the CPU."""
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
    """Works before the group is joined: arguments that do not fit are refused before any rank waits for another."""
    return int(os.environ["WORLD_SIZE"])


def local_world_size():
    return int(os.environ["LOCAL_WORLD_SIZE"])


def say(line):
    """Prints a line once for all ranks."""
    if dist.get_rank() == 0:
        print(line, flush=True)
