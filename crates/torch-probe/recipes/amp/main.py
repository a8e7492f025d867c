"""Recipe `amp`: mixed precision. A small transformer under DDP, with forward passes under `torch.autocast`, and the loss in float32 for
comparison.

bf16 has the range of float32 and needs nothing else. fp16 has a smaller range: small gradients become zero. So a GradScaler multiplies the
loss, skips a step whose gradients have overflowed, and finds a suitable factor. Its state is part of the checkpoint. The common parts are
in `foundation/`.
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

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def main():
    asked = parse_arguments()
    with group.joined() as device:
        train(asked, device)


def train(asked, device):
    if device.type == "cuda" and asked.precision == "bf16" and not torch.cuda.is_bf16_supported():
        raise SystemExit("this GPU has no bfloat16: choose --precision fp16")
    data = Data(asked, Share(dist.get_rank(), dist.get_world_size()), device)
    if asked.compare_steps:
        say_what_it_changes(asked, data)
    training = Training(*build(asked, data), data, mesh.in_words(None))
    MixedPrecision(asked, training).run()


def parse_arguments():
    parser = arguments.parser(
        "Train a small transformer in mixed precision.",
        "example: torchrun --standalone --nproc-per-node 2 main.py --precision fp16",
    )
    parser.add_argument("--precision", choices=tuple(DTYPES), default="bf16", help="fp16 comes with a GradScaler, on CPUs as well")
    parser.add_argument("--initial-scale", type=arguments.positive, default=65536.0, help="what a GradScaler multiplies the loss by at first")
    parser.add_argument(
        "--compare-steps", type=arguments.at_least(0), default=5, metavar="N",
        help="steps in float32 and in mixed precision before training, to see losses, memory and time of both; 0 leaves that out",
    )
    return parser.parse_args()


class MixedPrecision(Loop):
    def __init__(self, asked, training):
        super().__init__(asked, training)
        self.scaler = make_scaler(asked, training.data.device)
        self.skipped = 0
        self.mixed = True
        training.more["scaler"] = self.scaler

    def forward(self, inputs, targets):
        with autocast(self.arguments, self.training.data.device, enabled=self.mixed):
            return super().forward(inputs, targets)

    def update(self, loss):
        # Without fp16 the scaler is disabled, and each of these calls works as without it.
        optimizer = self.training.optimizer
        self.scaler.scale(loss).backward()
        if self.arguments.grad_clip > 0:
            self.scaler.unscale_(optimizer)
            self.clip()
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.scaler.get_scale() < before:
            self.skipped += 1
            say(f"step {self.training.step + 1} skipped: its gradients overflowed; the loss is scaled by {self.scaler.get_scale():g} from here on")

    def validated(self):
        """Also validates the same weights in float32: the difference of the losses is caused by rounding."""
        self.mixed = False
        exact = self.validation_loss()
        self.mixed = True
        say(f"step {self.training.step} validation loss in float32 {exact:.6g}, {self.training.val_loss - exact:+.2e} in {self.arguments.precision}")


def build(asked, data):
    torch.manual_seed(asked.seed)
    model = CharacterModel(data.alphabet, asked.width, asked.layers, asked.context, asked.dropout).to(data.device)
    model = DistributedDataParallel(model, device_ids=[data.device.index] if data.device.type == "cuda" else None)
    return model, torch.optim.AdamW(model.parameters(), lr=asked.lr)


def autocast(asked, device, enabled=True):
    return torch.autocast(device.type, dtype=DTYPES[asked.precision], enabled=enabled)


def make_scaler(asked, device):
    return torch.amp.GradScaler(device.type, init_scale=asked.initial_scale, enabled=asked.precision == "fp16")


def say_what_it_changes(asked, data):
    device = data.device
    ways = [
        trial.Way("float32", lambda: build(asked, data)),
        trial.Way(asked.precision, lambda: build(asked, data), lambda: autocast(asked, device), lambda: make_scaler(asked, device)),
    ]
    costs = trial.compare(ways, data.first(asked.compare_steps), device)
    for way, cost in zip(ways, costs):
        say(f"losses {way.name}: {' '.join(f'{loss:.6g}' for loss in cost.losses)}")
    for way, cost in zip(ways, costs):
        say(f"costs {way.name}: {cost.in_words()}")


if __name__ == "__main__":
    main()
