"""Everything that the next process needs to continue exactly: the content of a checkpoint and how it is restored.

    model, optimizer    by parameter names, each rank its shards; read back by any number of ranks
    progress            step, epoch, validation loss, and how the ranks stood
    ranks.R             each rank's own: random numbers, position in the data
    more                what a recipe has beside that, like a GradScaler's scale
"""

import json

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from resume.training import put_random_state_back, random_state

from .watched import unwatched


class Training:
    def __init__(self, model, optimizer, data, layout):
        self.model = model  # the model as trained: wrapped or sharded
        self.optimizer = optimizer
        self.data = data
        self.layout = layout  # as text; a different text means different ranks
        self.more = {}  # name: an object with state_dict and load_state_dict that contains plain values
        self.step = 0
        self.val_loss = None

    def state(self):
        """Returns the state of all ranks together, each its part: for `lockstep_checkpoint.save`."""
        return {
            **self.weights(),
            "progress": {
                "step": self.step,
                "epoch": self.data.sampler.epoch,
                "val_loss": self.val_loss,
                "layout": self.layout,
                "more": json.dumps({name: part.state_dict() for name, part in self.more.items()}),
            },
            "ranks": {str(dist.get_rank()): self._own()},
        }

    def weights(self):
        # An optimizer that has not stepped has no state to load into: torch creates it with a step that changes nothing and is not a step
        # of the run.
        with unwatched():
            model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def put_back(self, weights, rest):
        """Restores a loaded state. Returns whether it is exact: whether it contained this rank's own part."""
        set_state_dict(self.model, self.optimizer, model_state_dict=weights["model"], optim_state_dict=weights["optimizer"])
        progress, ranks = rest["progress"], rest["ranks"]
        self.step, self.val_loss = progress["step"], progress["val_loss"]
        for name, state in json.loads(progress["more"]).items():
            if name in self.more:
                self.more[name].load_state_dict(state)
        exact = progress["layout"] == self.layout and str(dist.get_rank()) in ranks
        if exact:
            own = ranks[str(dist.get_rank())]
            put_random_state_back(own, self.data.device)
        else:
            # The position is valid for any number of ranks; a rank that did not exist needs new random numbers.
            own = next(iter(ranks.values()))
            self.seed(self.step + 1)
        self.data.sampler.load_state_dict(json.loads(own["position"]))
        return exact

    def seed(self, seed):
        """Seeds each share of the data differently: the same dropout everywhere would reduce its effect. Ranks that compute one layer
        together use the same seed."""
        torch.manual_seed(seed * 1_000_003 + self.data.share.index)

    def _own(self):
        return {**random_state(self.data.device), "position": json.dumps(self.data.sampler.state_dict())}
