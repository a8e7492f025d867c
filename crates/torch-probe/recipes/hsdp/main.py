"""Recipe `hsdp`: hybrid sharding. The ranks form a mesh of replicas by shards, and FSDP2's `fully_shard` uses both.

A row of the mesh holds the model once, in shards; the rows hold the same shards and sum their gradients. A row is a node by default:
parameters are gathered only within a node, and only the gradients of one rank's shards are sent between nodes. The common parts are in
`foundation/`.
"""

import os
import sys

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the recipes' folder

from foundation import arguments, group, memory, mesh, sharding
from foundation.data import Data, Share
from foundation.group import say
from foundation.loop import Loop
from foundation.model import CharacterModel
from foundation.training import Training

import torch
import torch.distributed as dist


def main():
    asked = parse_arguments()
    replicas = mesh.rows(group.world_size(), asked.shards, "rows")
    with group.joined() as device:
        train(asked, device, replicas)


def train(asked, device, replicas):
    data = Data(asked, Share(dist.get_rank(), dist.get_world_size()), device)
    ranks = mesh.make(device, replicate=replicas, shard=asked.shards)
    torch.manual_seed(asked.seed)
    model = CharacterModel(data.alphabet, asked.width, asked.layers, asked.context, asked.dropout).to(device)
    whole = memory.size(model.parameters())
    sharding.shard(model, ranks, asked)
    say(f"rank 0 holds {memory.size(model.parameters())} bytes of {whole} bytes of parameters; {replicas} ranks hold the same")
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    Loop(asked, Training(model, optimizer, data, mesh.in_words(ranks))).run()


def parse_arguments():
    parser = arguments.parser(
        "Train a small transformer, sharded inside rows of ranks and replicated from row to row.",
        "example: torchrun --standalone --nproc-per-node 4 main.py --shards 2 --checkpoint-dir ckpt",
    )
    sharding.add_arguments(parser)
    parser.add_argument(
        "--shards", type=arguments.at_least(1), default=None, metavar="N",
        help="ranks that hold the model together; by default those of a node, and half of them where there is one node",
    )
    asked = parser.parse_args()
    asked.shards = asked.shards or mesh.neighbours()
    return asked


if __name__ == "__main__":
    main()
