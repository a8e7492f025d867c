"""`reshard_after_forward` and `fsdp_sharding`: when FSDP frees the gathered parameters, and what it shards.

                            FSDP2 (fully_shard)            FSDP1 (sharding_strategy)
    reshard true            reshard_after_forward=True     FULL_SHARD     (hybrid stays hybrid)
    reshard false           reshard_after_forward=False    SHARD_GRAD_OP  (hybrid stays hybrid)
    full_shard              as `true`                      FULL_SHARD
    shard_grad_op           as `false`                     SHARD_GRAD_OP
    no_shard                refused: that is DDP           NO_SHARD
    hybrid_shard            refused: needs another mesh    refused, unless the script has created its two groups

Both set the same arguments of torch. If they contradict each other, `fsdp_sharding` wins.
"""

import functools
import inspect

from .knob import Knob, KnobError
from .models import FULLY_SHARD

FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard")
SHORT = {"full": "full_shard", "grad_op": "shard_grad_op", "none": "no_shard", "hybrid": "hybrid_shard"}


class Sharding(Knob):
    """The common part of both knobs: change the arguments of the script's call of FSDP."""

    waits_for = "the script uses no FSDP (neither fully_shard nor FullyShardedDataParallel)"
    _modules = 0

    def patches(self):
        return {**dict.fromkeys(FULLY_SHARD, self._watch_fully_shard), FSDP1: self._watch_fsdp1}

    def _watch_fully_shard(self, module):
        original = module.fully_shard
        if self in getattr(original, "_lockstep_sharding", ()):
            return

        @functools.wraps(original)
        def fully_shard(module, *args, **kwargs):
            changed = self.guard(self._fsdp2, dict(kwargs))
            return original(module, *args, **(kwargs if changed is None else changed))

        fully_shard._lockstep_sharding = (*getattr(original, "_lockstep_sharding", ()), self)
        module.fully_shard = fully_shard

    def _watch_fsdp1(self, module):
        kind = module.FullyShardedDataParallel
        original = kind.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(*args, **kwargs):
            changed = self.guard(self._fsdp1, module, signature, args, kwargs)
            if changed is not None:
                args, kwargs = changed.args, changed.kwargs
            original(*args, **kwargs)

        kind.__init__ = __init__

    def _reshard(self, kwargs, reshard):
        before = kwargs.get("reshard_after_forward")
        kwargs["reshard_after_forward"] = reshard
        self._modules += 1
        when = "freed after the forward pass and gathered again" if reshard else "kept from the forward to the backward pass"
        was = "torch's default" if before is None else before
        self.applied(f"fully_shard: gathered parameters are {when}, in {self._modules} modules, the root included; the script had {was}")
        return kwargs

    def _strategy(self, module, signature, args, kwargs, choose):
        bound = signature.bind(*args, **kwargs)
        strategies = module.ShardingStrategy
        before = bound.arguments.get("sharding_strategy") or strategies.FULL_SHARD
        after = choose(strategies, before)
        bound.arguments["sharding_strategy"] = after
        if self.panel.state(self.name) is None:  # the wrapping of a model's parts also calls this, with the chosen arguments
            self.applied(f"FullyShardedDataParallel: sharding_strategy is {after.name}; the script had {before.name}")
        return bound


class ReshardAfterForward(Sharding):
    name = "reshard_after_forward"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        if value.lower() not in ("true", "false"):
            raise KnobError(f"reshard_after_forward is true or false, and '{value}' is not")
        self._wanted = value.lower() == "true"

    def _fsdp2(self, kwargs):
        if self.panel.of(FsdpSharding) is not None:
            raise KnobError("fsdp_sharding is given as well, and decides")
        return self._reshard(kwargs, self._wanted)

    def _fsdp1(self, module, signature, args, kwargs):
        if self.panel.of(FsdpSharding) is not None:
            raise KnobError("fsdp_sharding is given as well, and decides")
        return self._strategy(module, signature, args, kwargs, self._choose)

    def _choose(self, strategies, before):
        if before is strategies.NO_SHARD:
            raise KnobError("the script shards nothing (NO_SHARD), so that nothing is freed")
        hybrid = before in (strategies.HYBRID_SHARD, strategies._HYBRID_SHARD_ZERO2)
        if self._wanted:
            return strategies.HYBRID_SHARD if hybrid else strategies.FULL_SHARD
        return strategies._HYBRID_SHARD_ZERO2 if hybrid else strategies.SHARD_GRAD_OP


class FsdpSharding(Sharding):
    name = "fsdp_sharding"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._wanted = SHORT.get(value.lower(), value.lower())
        if self._wanted not in STRATEGIES:
            raise KnobError(f"fsdp_sharding is one of {', '.join(STRATEGIES)}, and '{value}' is not")

    def _fsdp2(self, kwargs):
        if self._wanted == "no_shard":
            raise KnobError("fully_shard cannot leave parameters whole: that is DistributedDataParallel, another line in the script")
        if self._wanted == "hybrid_shard":
            raise KnobError("fully_shard shards over the device mesh the script gives it: hybrid sharding needs a mesh of two dimensions")
        return self._reshard(kwargs, self._wanted == "full_shard")

    def _fsdp1(self, module, signature, args, kwargs):
        def choose(strategies, before):
            hybrid = before in (strategies.HYBRID_SHARD, strategies._HYBRID_SHARD_ZERO2)
            if (self._wanted == "hybrid_shard") != hybrid:
                raise KnobError("between hybrid and other sharding the process groups change, which only the script can make")
            return strategies[self._wanted.upper()]

        return self._strategy(module, signature, args, kwargs, choose)
