"""Recipe `activation-checkpointing`: saves memory between forward and backward pass at the cost of time, and measures whether it is worth
it.

A checkpointed block keeps only its input, and computes the rest again when the backward pass reaches it. It uses the same random numbers,
including dropout, so the losses are the same. Under DDP, with `--autocast bf16` on request. Before training, the recipe runs a few steps
with and without checkpointing, and judges them by the rule "more than 50 % of the memory saved, less than 30 % slower". The common parts
are in `foundation/`.
"""

import os
import sys

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the recipes' folder

from foundation import arguments, group, mesh, trial
from foundation.data import Data, Share
from foundation.group import say
from foundation.loop import Loop
from foundation.model import CharacterModel
from foundation.training import Training

import granularity
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SAVED_MIN = 0.5  # of the memory
SLOWER_MAX = 0.3  # of the time of a step
ROUNDS = 3  # per variant, alternating


def main():
    asked = parse_arguments()
    with group.joined() as device:
        train(asked, device)


def train(asked, device):
    data = Data(asked, Share(dist.get_rank(), dist.get_world_size()), device)
    if asked.compare_steps and asked.granularity != granularity.NONE:
        judge(asked, data)
    training = Training(*build(asked, data, asked.granularity), data, mesh.in_words(None))
    Autocasting(asked, training).run()


def parse_arguments():
    parser = arguments.parser(
        "Train a small transformer with activation checkpointing, and see what it saves and costs.",
        "example: torchrun --standalone --nproc-per-node 2 main.py --granularity every=2",
    )
    parser.set_defaults(batch_size=16, context=64)
    parser.add_argument(
        "--granularity", type=granularity.parse, default=granularity.BLOCK, metavar="none|block|every=N|sequential=N",
        help="block: each transformer block; every=N: each N-th; sequential=N: N pieces of equal length, all but the last of them",
    )
    parser.add_argument("--autocast", choices=("off", "bf16"), default="off")
    parser.add_argument(
        "--compare-steps", type=arguments.at_least(0), default=4, metavar="N",
        help=f"steps with and without, {ROUNDS} times in turns before training, to see what it saves and costs; 2 or more, or 0 to leave that out",
    )
    asked = parser.parse_args()
    if asked.compare_steps == 1:
        parser.error("argument --compare-steps: the first step is not timed: give 2 or more, or 0 to leave the comparison out")
    problem = asked.granularity.problem(asked.layers)
    if problem:
        parser.error(f"argument --granularity: {problem}")
    return asked


class Autocasting(Loop):
    def forward(self, inputs, targets):
        with autocast(self.arguments, self.training.data.device):
            return super().forward(inputs, targets)


def build(asked, data, chosen):
    torch.manual_seed(asked.seed)
    model = CharacterModel(data.alphabet, asked.width, asked.layers, asked.context, asked.dropout).to(data.device)
    chosen.apply(model)
    model = DistributedDataParallel(model, device_ids=[data.device.index] if data.device.type == "cuda" else None)
    return model, torch.optim.AdamW(model.parameters(), lr=asked.lr)


def autocast(asked, device):
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=asked.autocast == "bf16")


def judge(asked, data):
    choices = (granularity.NONE, asked.granularity)
    ways = [trial.Way(str(chosen), lambda chosen=chosen: build(asked, data, chosen), lambda: autocast(asked, data.device)) for chosen in choices]
    costs = trial.compare(ways, data.first(asked.compare_steps), data.device, ROUNDS)
    for way, cost in zip(ways, costs):
        say(f"costs {way.name}: {cost.in_words()}")
    without, having = costs
    say(f"losses with and without: {'the same' if without.losses == having.losses else f'{without.losses} and {having.losses}'}")
    saved, slower = 1 - having.memory_bytes / without.memory_bytes, having.fastest_step_s / without.fastest_step_s - 1
    worth = saved > SAVED_MIN and slower < SLOWER_MAX
    say(
        f"verdict: memory {-saved:+.1%}, step time {slower:+.1%}: {'worth it' if worth else 'not worth it'} "
        f"(the rule: more than {SAVED_MIN:.0%} saved and less than {SLOWER_MAX:.0%} slower)"
    )


if __name__ == "__main__":
    main()
