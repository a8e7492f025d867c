"""Stragglers: all ranks make progress, but wait for one, which takes EXTRA seconds longer in each step.

    slow-forward, slow-backward, slow-optimizer, slow-data, slow-host
    slow-everywhere           a fifth of it in each of these
    large-batch               a batch that takes that much longer
    intermittent              stalls once per PERIOD seconds, in the forward pass
    busy-neighbour            the test starts programs that compute on the rank's core
"""

import functools


def slow(part, training):
    training.pace.seconds[part] += training.extra_s


def slow_everywhere(training):
    seconds = training.pace.seconds
    for part in seconds:
        seconds[part] += training.extra_s / len(seconds)


def large_batch(training):
    seconds, samples = training.pace.seconds, training.samples
    samples.batch = round(samples.batch * (1 + training.extra_s / (seconds["forward"] + seconds["backward"])))


def stall(part, training):
    training.pace.stalls_in = part


STRIKES = {
    **{f"slow-{part}": functools.partial(slow, part) for part in ("forward", "backward", "optimizer", "data", "host")},
    "slow-everywhere": slow_everywhere,
    "large-batch": large_batch,
    "intermittent": functools.partial(stall, "forward"),
}
