"""Recipe `fsdp`: a small transformer, sharded block by block with FSDP2's `fully_shard`, compared with the memory of DDP.

NCCL if each rank has a GPU and Gloo on CPUs. It is an ordinary script that needs only torchrun. `foundation/` contains the loop, the
sharded checkpoints and other common parts; `foundation/sharding.py` is the most important file of this recipe.
"""

import os
import sys

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the recipes' folder

from foundation import arguments, group, mesh, sharding, trial
from foundation.data import Data, Share
from foundation.group import say
from foundation.loop import Loop
from foundation.model import CharacterModel
from foundation.training import Training

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    asked = parse_arguments()
    with group.joined() as device:
        train(asked, device)


def train(asked, device):
    data = Data(asked, Share(dist.get_rank(), dist.get_world_size()), device)
    ranks = mesh.make(device, shard=dist.get_world_size())
    if asked.compare_steps:
        say_what_it_saves(asked, data, ranks)
    model = sharding.shard(build_model(asked, data), ranks, asked)
    Loop(asked, Training(model, build_optimizer(asked, model), data, mesh.in_words(ranks))).run()


def parse_arguments():
    parser = arguments.parser(
        "Train a small transformer with FSDP2.",
        "example: torchrun --standalone --nproc-per-node 4 main.py --sharding grad-op --checkpoint-dir ckpt",
    )
    sharding.add_arguments(parser)
    parser.add_argument(
        "--compare-steps", type=arguments.at_least(0), default=3, metavar="N",
        help="steps under DDP and under FSDP before training, to see the memory of both; 0 leaves that out",
    )
    return parser.parse_args()


def build_model(asked, data):
    torch.manual_seed(asked.seed)
    return CharacterModel(data.alphabet, asked.width, asked.layers, asked.context, asked.dropout).to(data.device)


def build_optimizer(asked, model):
    return torch.optim.AdamW(model.parameters(), lr=asked.lr)


def say_what_it_saves(asked, data, ranks):
    def replicated():
        model = DistributedDataParallel(build_model(asked, data), device_ids=[data.device.index] if data.device.type == "cuda" else None)
        return model, build_optimizer(asked, model)

    def sharded():
        model = sharding.shard(build_model(asked, data), ranks, asked)
        return model, build_optimizer(asked, model)

    ways = [trial.Way("ddp", replicated), trial.Way(f"fsdp {asked.sharding}", sharded)]
    costs = trial.compare(ways, data.first(asked.compare_steps), data.device)
    say("memory of rank 0 in bytes: what it holds for the model, and parameters that stay gathered from forward to backward")
    for way, cost in zip(ways, costs):
        held = cost.held
        line = f"memory {way.name}: parameters {held.parameters} gradients {held.gradients} optimizer {held.optimizer} total {held.total} gathered {gathered(way, cost)}"
        say(line if cost.peak_bytes is None else f"{line} allocator-peak {cost.peak_bytes}")
        say(f"losses {way.name}: {' '.join(f'{loss:.6g}' for loss in cost.losses)}")
    ddp, fsdp = (cost.held.total for cost in costs)
    say(f"fsdp holds {fsdp / ddp:.1%} of what ddp holds, on each of {dist.get_world_size()} ranks")


def gathered(way, cost):
    return 0 if way.name == "ddp" else cost.whole_parameters_bytes  # parameters under ddp are always whole


if __name__ == "__main__":
    main()
