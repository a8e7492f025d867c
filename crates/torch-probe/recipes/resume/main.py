"""Recipe `resume`: a training loop that survives faults and continues exactly where it was.

DistributedDataParallel, NCCL where each rank has a GPU and Gloo on CPUs. It is an ordinary script: `torchrun` is all it needs, and it can be
used as a pattern for other scripts. The parts:

    main.py         the loop: when to save, when to stop, what to do after a failure
    training.py     everything that the next process needs, and how it is restored
    checkpoints.py  the kinds of checkpoint, and which one to resume from       emergency.py  what a rank saves alone
    stopping.py     SIGTERM, and the ranks' agreement on a last step            faults.py     faults on request
    model.py, text.py, files.py
"""

import argparse
import math
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(HERE))  # the recipes' folder

from foundation.group import backend, leave, own_device, say

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

try:
    import lockstep_checkpoint
except ImportError:  # not in a run of Lockstep, which has it on PYTHONPATH: it is in the folder of the recipes
    sys.path.append(os.path.join(HERE, "..", "..", "inject"))
    import lockstep_checkpoint

import checkpoints
import emergency
import faults
import stopping
from model import CharacterModel
from text import ResumableSampler, Text
from training import Training, seed_rank


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(stopping.STATUS))  # until there is something to save
    device = own_device()
    dist.init_process_group(backend(device))
    loop = Loop(arguments, device)
    try:
        loop.run()
    except Exception as failure:
        loop.rescue(failure)
        if loop.stop.asked:  # a peer that stopped first closes its connections: this is not a failure of this rank
            raise SystemExit(stopping.STATUS) from None
        raise
    finally:
        # If a peer is gone, NCCL's own teardown may wait for collectives that never finish: the process exit ends them.
        if loop.finished or device.type != "cuda":
            loop.model = None
            leave()


def parse_arguments():
    parser = argparse.ArgumentParser(description="A fault-tolerant training loop under DDP.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=10, help="steps over which the learning rate rises; then it falls as a cosine")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=64, help="characters per sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--freeze", type=int, default=0, metavar="K", help="keep the embedding and the first K blocks as they are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-workers", type=int, default=0, help="DataLoader worker processes per rank")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--validate-every", type=int, default=20)
    parser.add_argument("--step-delay-ms", type=float, default=0.0, help="sleep in each step, to pace a demonstration")
    group = parser.add_argument_group("checkpoints")
    group.add_argument("--checkpoint-dir", default=None, help="the same folder for all ranks; without it nothing is saved")
    group.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    group.add_argument("--full-every", type=int, default=1, metavar="N", help="of N checkpoints, N-1 hold the model alone")
    group.add_argument("--no-link", action="store_true", help="write unchanged weights again each time")
    group.add_argument("--plain", action="store_true", help="ckpt_EPOCH.pth by torch.save after each epoch as well")
    group.add_argument(
        "--resume", default=None, metavar="PATH|latest",
        help="go on from this checkpoint, or from the newest whole one in --checkpoint-dir; LOCKSTEP_RESUME_FROM goes before it",
    )
    group.add_argument(
        "--on-save-failure", choices=("stop", "continue"), default="stop", help="when a save failed on all ranks alike, as on a full disk"
    )
    faults.add_arguments(parser)
    return parser.parse_args()


class Loop:
    def __init__(self, arguments, device):
        self.arguments = arguments
        self.device = device
        self.updating = False  # the weights are between two steps
        self.finished = False
        self.saved_step = None  # in full
        torch.manual_seed(arguments.seed)
        text, self.held_out = Text(arguments.context, "training"), Text(arguments.context, "validation")
        model = CharacterModel(len(text.alphabet), arguments.width, arguments.layers, arguments.context, arguments.dropout).to(device)
        arguments.frozen = [f"model.{name}" for name in model.freeze(arguments.freeze)]
        optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=arguments.lr)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate(arguments.warmup, arguments.steps))
        sampler = ResumableSampler(len(text), arguments.batch_size, dist.get_rank(), dist.get_world_size(), arguments.seed)
        # A separate generator: an iterator that is created again after a resume must not take a number from the model's random numbers.
        draw = torch.Generator().manual_seed(arguments.seed)
        self.loader = DataLoader(text, arguments.batch_size, sampler=sampler, num_workers=arguments.num_workers, generator=draw)
        self.training = Training(model, optimizer, scheduler, sampler, device)
        self.model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        self.stop = stopping.Stopping()

    def run(self):
        self.begin()
        training, arguments = self.training, self.arguments
        if len(self.loader.dataset) < training.sampler.step_samples:
            raise SystemExit("the text is too short for this batch size, context and number of ranks: lower one of them")
        while training.step < arguments.steps:
            for batch in self.loader:
                began = time.monotonic()
                loss = self.step(batch)
                self.after_step(loss)
                self.stop_if_asked(time.monotonic() - began)
                if training.step == arguments.steps:
                    break
            else:
                self.after_epoch()
        if training.step != self.saved_step:
            self.save(full=True)
        self.finished = True

    def begin(self):
        """Restores a checkpoint if one is given, else seeds each rank's own random numbers."""
        training, arguments = self.training, self.arguments
        asked = os.environ.get("LOCKSTEP_RESUME_FROM") or arguments.resume
        path = checkpoints.choose(asked, arguments.checkpoint_dir)
        if path:
            exact = training.put_back(checkpoints.load(path))
            self.saved_step = training.step
            how = "exactly" if exact else "with new random numbers: it was saved by other ranks, or not by all"
            say(f"resumed from {path} at step {training.step}, {how}")
        else:
            seed_rank(arguments.seed)
        training.mark_boundary()
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        say(f"training {parameters} parameters on {dist.get_world_size()} x {self.device.type}, from step {training.step}")

    def step(self, batch):
        training = self.training
        inputs, targets = batch
        loss = self.model(inputs.to(self.device), targets.to(self.device))
        if self.arguments.step_delay_ms > 0:
            time.sleep(self.arguments.step_delay_ms / 1000)
        faults.strike(self.arguments, training.step + 1)
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.updating = True
        training.optimizer.step()
        training.scheduler.step()
        training.step += 1
        training.sampler.trained_on_a_batch()
        training.mark_boundary()
        self.updating = False
        return loss

    def after_step(self, loss):
        training, arguments = self.training, self.arguments
        last = training.step == arguments.steps
        if training.step % arguments.log_every == 0 or training.step == 1 or last:
            # Nine digits identify any 32-bit number: resumed losses can be compared with uninterrupted ones.
            say(f"step {training.step} loss {loss.item():.9g} lr {training.scheduler.get_last_lr()[0]:.3g}")
        if training.step % arguments.validate_every == 0 or last:
            self.validate()
        if training.step % arguments.checkpoint_every == 0:
            self.save(full=True if last else None)

    def after_epoch(self):
        training = self.training
        training.sampler.next_epoch()
        training.mark_boundary()
        if self.arguments.plain and self.arguments.checkpoint_dir:
            checkpoints.save_plain(training, self.arguments.checkpoint_dir)

    @torch.no_grad()
    def validate(self):
        """Computes the mean loss over the validation text, each rank a share; keeps the model if it is the best so far."""
        training, batch_size = self.training, self.arguments.batch_size
        training.model.eval()
        own = range(dist.get_rank(), len(self.held_out), dist.get_world_size() * Text.STRIDE)
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for first in range(0, len(own), batch_size):
            windows = [self.held_out[item] for item in own[first : first + batch_size]]
            inputs, targets = (torch.stack(part).to(self.device) for part in zip(*windows))
            total += torch.tensor([training.model(inputs, targets).item() * len(windows), len(windows)], device=self.device)
        training.model.train()
        dist.all_reduce(total)
        training.val_loss = (total[0] / total[1]).item()
        say(f"step {training.step} validation loss {training.val_loss:.6g}")
        if training.best_val_loss is None or training.val_loss < training.best_val_loss:
            training.best_val_loss = training.val_loss
            if self.arguments.checkpoint_dir:
                checkpoints.save_best(training, self.arguments.checkpoint_dir)

    def save(self, full=None):
        """All ranks save together. A failed save failed on every rank, so every rank decides in the same way."""
        if not self.arguments.checkpoint_dir:
            return
        began = time.monotonic()
        try:
            path = checkpoints.save(self.training, self.arguments.checkpoint_dir, self.arguments, full)
        except (lockstep_checkpoint.SaveFailed, lockstep_checkpoint.NotEnoughSpace) as failure:
            if self.arguments.on_save_failure == "stop":
                raise
            say(f"no checkpoint at step {self.training.step}: {failure}")
            return
        if not lockstep_checkpoint.model_only(path):
            self.saved_step = self.training.step
        say(f"checkpoint {path} in {time.monotonic() - began:.3f} s")

    def stop_if_asked(self, step_s):
        together = self.stop.now(self.training.step, step_s)
        if together is None:
            return
        if not together:
            self.rescue("the ranks did not agree on a last step in time")
        elif self.training.step != self.saved_step:
            self.save(full=True)
        self.finished = together
        say(f"stopped after step {self.training.step}, as asked for")
        raise SystemExit(stopping.STATUS)

    def rescue(self, reason):
        """Saves what this rank can save alone. Its own errors never hide the original failure."""
        training = self.training
        if not self.arguments.checkpoint_dir or training.at_boundary is None or training.step == 0:
            return
        if self.updating:
            tell("no emergency snapshot: the weights' update was under way")
            return
        try:
            tell(f"emergency snapshot {emergency.save(training, self.arguments.checkpoint_dir, str(reason)[:1000])}")
        except Exception as failure:  # noqa: BLE001 (whatever it is, the first failure is the one to hear about)
            tell(f"no emergency snapshot: {type(failure).__name__}: {failure}")


def rate(warmup, steps):
    """Returns the factor of the learning rate after this number of steps: a linear warm-up, then a half cosine down to a tenth."""

    def at(done):
        return min(1.0, (done + 1) / max(1, warmup)) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, done / max(1, steps))))

    return at


def tell(line):
    """Prints a line about this rank."""
    print(f"rank {dist.get_rank()}: {line}", flush=True)


if __name__ == "__main__":
    main()
