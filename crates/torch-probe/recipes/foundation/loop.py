"""The training loop: steps, validation, checkpoints, and stops on request. Recipes override `forward` and `update`."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

from resume.stopping import STATUS, Stopping

from . import checkpoints
from .group import say


class Loop:
    def __init__(self, arguments, training):
        self.arguments = arguments
        self.training = training
        self.stop = Stopping()
        self._saved_step = None

    def run(self):
        """Trains to the last step, or to the one that the ranks agree on after a SIGTERM; then ends with status 143."""
        try:
            self._train()
        except Exception:
            if self.stop.asked:  # a peer that stopped first closes its connections: this is not a failure of this rank
                raise SystemExit(STATUS) from None
            raise

    # === overridden by recipes ===

    def forward(self, inputs, targets):
        return self.training.model(inputs, targets)

    def update(self, loss):
        loss.backward()
        self.clip()
        self.training.optimizer.step()

    def validated(self):
        """Called after a validation."""

    # === not overridden ===

    def clip(self):
        if self.arguments.grad_clip > 0:
            nn.utils.clip_grad_norm_(self.training.model.parameters(), self.arguments.grad_clip)

    def validation_loss(self):
        """Returns the mean loss over the validation text; each share computes a part."""
        training = self.training
        training.model.eval()
        with torch.no_grad():
            losses = torch.stack([self.forward(*batch) for batch in training.data.validation()])
        training.model.train()
        mean = losses.double().mean()
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size()

    def _train(self):
        training, data, steps = self.training, self.training.data, self.arguments.steps
        self._begin()
        while training.step < steps:
            for batch in data.loader:
                began = time.monotonic()
                loss = self._step(data.to_device(batch))
                self._after_step(loss)
                self._stop_if_asked(time.monotonic() - began)
                if training.step == steps:
                    break
            else:
                data.sampler.next_epoch()
        self._save()

    def _begin(self):
        """Restores a checkpoint if one is given, else seeds the random numbers of each share."""
        training, arguments = self.training, self.arguments
        asked = os.environ.get("LOCKSTEP_RESUME_FROM") or arguments.resume
        path = checkpoints.choose(asked, arguments.checkpoint_dir)
        if path:
            exact = checkpoints.load(training, path)
            self._saved_step = training.step
            how = "exactly" if exact else "with new random numbers: other ranks saved it"
            say(f"resumed from {path} at step {training.step}, {how}")
        else:
            training.seed(arguments.seed)
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        say(f"training {parameters} parameters on {training.data.device.type}, {training.layout}, from step {training.step}")

    def _step(self, batch):
        training, arguments = self.training, self.arguments
        for group in training.optimizer.param_groups:
            group["lr"] = arguments.lr * min(1.0, (training.step + 1) / max(1, arguments.warmup))
        loss = self.forward(*batch)
        if arguments.step_delay_ms > 0:
            time.sleep(arguments.step_delay_ms / 1000)
        self.update(loss)
        training.optimizer.zero_grad(set_to_none=True)
        training.step += 1
        training.data.sampler.trained_on_a_batch()
        return loss

    def _after_step(self, loss):
        training, arguments = self.training, self.arguments
        last = training.step == arguments.steps
        if training.step % arguments.log_every == 0 or training.step == 1 or last:
            # Nine digits identify any 32-bit number: resumed losses can be compared with uninterrupted ones.
            say(f"step {training.step} loss {loss.item():.9g} lr {training.optimizer.param_groups[0]['lr']:.3g}")
        if training.step % arguments.validate_every == 0 or last:
            training.val_loss = self.validation_loss()
            say(f"step {training.step} validation loss {training.val_loss:.6g}")
            self.validated()
        if training.step % arguments.checkpoint_every == 0:
            self._save()

    def _save(self):
        training = self.training
        if not self.arguments.checkpoint_dir or training.step == self._saved_step:
            return
        began = time.monotonic()
        path = checkpoints.save(training, self.arguments.checkpoint_dir)
        self._saved_step = training.step
        say(f"checkpoint {path} in {time.monotonic() - began:.3f} s")

    def _stop_if_asked(self, step_s):
        together = self.stop.now(self.training.step, step_s)
        if together is None:
            return
        if together:
            self._save()
            say(f"stopped after step {self.training.step}, as asked for")
        else:
            # The weights are shards on all ranks: no rank can save them alone.
            say(f"stopped after step {self.training.step} without a checkpoint: the ranks did not agree on a last step in time")
        raise SystemExit(STATUS)
