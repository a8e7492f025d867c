"""All ranks become slower by EXTRA seconds per step.

    slow-step                 in the forward and the backward pass
    slow-sync                 the gradients arrive later
"""

import time

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def slow_step(training):
    for part in ("forward", "backward"):
        training.pace.seconds[part] += training.extra_s / 2


def slow_sync(training):
    training.sync_delay_s = training.extra_s


def delayed_all_reduce(training, bucket):
    """A communication hook of DistributedDataParallel that averages gradients, and holds them back for the delay of the training."""

    def arrive(future):
        time.sleep(training.sync_delay_s)
        return future.value()

    return default_hooks.allreduce_hook(None, bucket).then(arrive)


STRIKES = {"slow-step": slow_step, "slow-sync": slow_sync}
