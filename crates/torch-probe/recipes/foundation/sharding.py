"""FSDP2's `fully_shard`, block by block, in the versions of torch that have it, and its arguments.

Each block is a unit: its parameters are gathered before its forward pass. With `full` they are freed after it and gathered again for the
backward pass. With `grad-op` they stay gathered in between, which avoids the second gathering and costs their memory.
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
    # The remaining parameters belong to the model itself. By default `full` keeps them until the backward pass, which starts with them.
    fully_shard(model, **settings, **keep)
    return model


def make_up_for_what_lacks_on_cpus():
    if not gloo_averages():
        average_by_sum()
    if torch_is_before(2, 8):
        # Gradients of replicas are summed in a separate stream, whose end must have been recorded; on a CPU nothing was recorded.
        torch.cpu.Stream.record_event = lambda stream: torch.cpu.Event()


def gloo_averages():
    """Returns whether Gloo supports averages: FSDP2 requests them, but torch 2.7 does not support them, and a reduce-scatter silently
    returns sums."""
    try:
        dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.AVG)
    except (RuntimeError, ValueError):
        return False
    return True


def average_by_sum():
    """Computes the averages that FSDP2 requests as a sum and a division."""
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
