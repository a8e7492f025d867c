"""Everything that the next process needs to continue exactly: the content of a checkpoint and how it is restored.

    model, optimizer, scheduler     the same on every rank under DDP
    progress                        step, best validation loss, world size
    ranks.R                         each rank's own: random number generators, position in the data
"""

import json
import random

import torch
import torch.distributed as dist


class Training:
    def __init__(self, model, optimizer, scheduler, sampler, device):
        self.model = model  # without its DDP wrapper
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.sampler = sampler
        self.device = device
        self.step = 0
        self.val_loss = None
        self.best_val_loss = None
        self.at_boundary = None

    def mark_boundary(self):
        """Stores this rank's own state between two steps: the next step's batch and dropout change it at once, its update much later.

        After a failure in the middle of a step, the saved weights are those before it, so the rest must also be from that time.
        """
        self.at_boundary = {**random_state(self.device), "position": json.dumps(self.sampler.state_dict())}

    def shared(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "progress": {
                "step": self.step,
                "val_loss": self.val_loss,
                "best_val_loss": self.best_val_loss,
                "world_size": dist.get_world_size(),
            },
        }

    def of_ranks(self):
        """Returns this rank's own state, under its number, so that the ranks' parts do not collide."""
        return {str(dist.get_rank()): self.at_boundary}

    def put_back(self, state):
        """Restores a loaded state. Returns whether it is exact: whether it contained this rank's own part."""
        self.model.load_state_dict(state["model"])
        optimizer = state["optimizer"]
        moments = {int(parameter): moment for parameter, moment in optimizer.get("state", {}).items()}
        self.optimizer.load_state_dict({"state": moments, "param_groups": optimizer["param_groups"]})
        self.scheduler.load_state_dict(state["scheduler"])
        progress = state["progress"]
        self.step, self.val_loss, self.best_val_loss = progress["step"], progress["val_loss"], progress["best_val_loss"]
        exact = progress["world_size"] == dist.get_world_size() and str(dist.get_rank()) in state["ranks"]
        if exact:
            own = state["ranks"][str(dist.get_rank())]
            put_random_state_back(own, self.device)
        else:
            # The position is valid for any number of ranks; a rank that did not exist needs new random numbers.
            own = next(iter(state["ranks"].values()))
            seed_rank(self.step + 1)
        self.sampler.load_state_dict(json.loads(own["position"]))
        return exact


def seed_rank(seed):
    """Seeds each rank differently: the same dropout everywhere would reduce its effect."""
    own = seed * 1_000_003 + dist.get_rank()
    torch.manual_seed(own)
    random.seed(own)


def random_state(device):
    state = {"torch": torch.get_rng_state(), "python": json.dumps(random.getstate())}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def put_random_state_back(state, device):
    torch.set_rng_state(state["torch"])
    version, internal, gauss = json.loads(state["python"])
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
