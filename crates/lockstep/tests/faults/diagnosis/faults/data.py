"""Data that one rank gets differently, or too slowly.

    constant-labels           all labels are MAGNITUDE
    shuffled-labels           each label belongs to the sample beside it
    repeated-batch            the same batch each time
    normalised-twice          inputs are MAGNITUDE times too small
    slow-data                 see stragglers; here on all ranks
    few-workers               one worker process per rank, which needs EXTRA seconds longer for a batch, on all ranks
    intermittent-data         stalls once per PERIOD seconds, while it waits for data
"""

import functools

import torch

from . import stragglers


def spoiled(spoil):
    """Returns a fault that changes each batch: `spoil(inputs, targets, magnitude)` returns the new inputs and targets."""

    def strike(training):
        training.samples.spoil = lambda inputs, targets: spoil(inputs, targets, training.arguments.magnitude)

    return strike


def repeat_batch(training):
    batch = next(iter(training.samples))
    training.samples.spoil = lambda inputs, targets: batch


def slow_workers(training):
    training.samples.extra_s.value = training.extra_s


STRIKES = {
    "constant-labels": spoiled(lambda inputs, targets, label: (inputs, torch.full_like(targets, label))),
    "shuffled-labels": spoiled(lambda inputs, targets, _: (inputs, targets.roll(1, 0))),
    "normalised-twice": spoiled(lambda inputs, targets, divisor: (inputs / divisor, targets)),
    "repeated-batch": repeat_batch,
    "few-workers": slow_workers,
    "intermittent-data": functools.partial(stragglers.stall, "data"),
}
