"""Recipe `device-mesh`: a mesh of two dimensions, data parallel by tensor parallel.

Along `tensor` the ranks compute each layer together: `parallelize_module` splits the linear layers by columns, then by rows, so that a pair
of layers needs one all-reduce. Along `data` they train on different batches, and `fully_shard` shards the remaining parameters. Ranks of
one `tensor` row get the same batch and the same dropout. The common parts are in `foundation/`.
"""

import os
import sys

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the recipes' folder

from foundation import arguments, group, memory, mesh, sharding
from foundation.data import Data, Share
from foundation.group import say
from foundation.loop import Loop
from foundation.model import HEAD_WIDTH, CharacterModel
from foundation.training import Training

import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main():
    asked = parse_arguments()
    heads = asked.width // HEAD_WIDTH
    if heads % asked.tensor_parallel:
        raise SystemExit(f"{heads} attention heads cannot be dealt out to {asked.tensor_parallel} ranks: change --width or --tensor-parallel")
    shares = mesh.rows(group.world_size(), asked.tensor_parallel, "rows")
    with group.joined() as device:
        train(asked, device, shares)


def train(asked, device, shares):
    ranks = mesh.make(device, data=shares, tensor=asked.tensor_parallel)
    data = Data(asked, Share(ranks.get_local_rank("data"), shares), device)
    torch.manual_seed(asked.seed)
    model = CharacterModel(data.alphabet, asked.width, asked.layers, asked.context, asked.dropout).to(device)
    whole = memory.size(model.parameters())
    cut(model, ranks["tensor"])
    sharding.shard(model, ranks["data"], asked)
    say(f"rank 0 holds {memory.size(model.parameters())} bytes of {whole} bytes of parameters")
    # Separately: some versions of torch cannot update tensors of different meshes in one call.
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr, foreach=False)
    Loop(asked, Training(model, optimizer, data, mesh.in_words(ranks))).run()


def parse_arguments():
    parser = arguments.parser(
        "Train a small transformer with data and tensor parallelism.",
        "example: torchrun --standalone --nproc-per-node 4 main.py --tensor-parallel 2 --checkpoint-dir ckpt",
    )
    sharding.add_arguments(parser)
    parser.add_argument(
        "--tensor-parallel", type=arguments.at_least(1), default=None, metavar="N",
        help="ranks that compute each layer together; by default those of a node, and half of them where there is one node",
    )
    asked = parser.parse_args()
    asked.tensor_parallel = asked.tensor_parallel or mesh.neighbours()
    return asked


def cut(model, ranks):
    """By columns, a rank computes some outputs of a layer from all inputs; by rows, its part of all outputs from some inputs."""
    plan = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.mix": RowwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    for block in model.blocks:
        parallelize_module(block, ranks, plan)


if __name__ == "__main__":
    main()
