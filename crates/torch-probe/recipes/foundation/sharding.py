"""FSDP2's `fully_shard`, block by block, in the versions of torch that have it, and the arguments that go with it.

Each block is a unit: its parameters are gathered before its forward pass and, with `full`, freed behind it and gathered again for the
backward pass; with `grad-op` they stay from the one to the other, which saves that second gathering and costs their memory.
"""

import torch
import torch.distributed as dist

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard

from .group import torch_is_before


def add_arguments(parser):
    group = parser.add_argument_group("sharding")
    group.add_argument(
        "--sharding", choices=("full", "grad-op"), default="full",
        help="full frees a block's parameters after its forward pass (ZeRO-3); grad-op keeps them until its backward pass (ZeRO-2)",
    )
    group.add_argument(
        "--mixed-precision", choices=("off", "bf16"), default="off",
        help="bf16 gathers and computes in bfloat16; shards, gradients' sums and the optimizer stay in float32",
    )


def shard(model, mesh, arguments):
    """Shards a model in place over a mesh: of one dimension, or of two, then replicated along the first."""
    if mesh.device_type == "cpu":
        make_up_for_what_lacks_on_cpus()
    half = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    policy = MixedPrecisionPolicy(**(half if arguments.mixed_precision == "bf16" else {}))
    settings = {"mesh": mesh, "mp_policy": policy}
    keep = {} if arguments.sharding == "full" else {"reshard_after_forward": False}
    for block in model.blocks:
        fully_shard(block, **settings, **keep)
    # What is left belongs to the model itself. By itself `full` keeps that until the backward pass, which begins with it.
    fully_shard(model, **settings, **keep)
    return model


def make_up_for_what_lacks_on_cpus():
    if not gloo_averages():
        average_by_sum()
    if torch_is_before(2, 8):
        # Replicas' gradients are added up in a stream of its own, whose end must have been recorded; on a CPU nothing was.
        torch.cpu.Stream.record_event = lambda stream: torch.cpu.Event()


def gloo_averages():
    """Whether Gloo can: FSDP2 asks for averages, and in torch 2.7 there are none, and a reduce-scatter makes sums of them without a word."""
    try:
        dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.AVG)
    except (RuntimeError, ValueError):
        return False
    return True


def average_by_sum():
    """Makes the averages that FSDP2 asks for out of a sum and a division."""
    for name in ("all_reduce", "reduce_scatter_tensor"):
        setattr(dist, name, averaging(getattr(dist, name)))


def averaging(collective):
    def averages(*args, op=dist.ReduceOp.SUM, group=None, **kwargs):
        if op != dist.ReduceOp.AVG:
            return collective(*args, op=op, group=group, **kwargs)
        work = collective(*args, op=dist.ReduceOp.SUM, group=group, **kwargs)
        result = args[0] if args else next(kwargs[name] for name in ("output", "tensor") if name in kwargs)
        result.div_(dist.get_world_size(group))
        return work

    return averages
