"""Ranks whose parameters, gradients or learning rates go wrong.

    flipped-bit               bit MAGNITUDE of one parameter flips
    other-checkpoint          all parameters are a little different, as after loading another checkpoint; MAGNITUDE is the deviation
    other-learning-rate       the rate of this rank is MAGNITUDE times the rate of the others
    learning-rate-zero        the schedule is at its end, on all ranks
    learning-rate-jump        the rate is 10 ** MAGNITUDE times as high, on all ranks
    nan-labels                one label of each batch is NaN
    inf-gradient              a gradient overflows in the backward pass
    lost-scale                the same with a gradient scaler
    noisy-labels              labels get noise on all ranks; MAGNITUDE is its deviation
"""

import math

import torch

from .data import spoiled


def flip_bit(training):
    words = training.local_parameters()[0].view(torch.int32).view(-1)
    words[0] ^= 1 << int(training.arguments.magnitude)


def load_other_checkpoint(training):
    for parameter in training.local_parameters():
        parameter.add_(training.arguments.magnitude * torch.randn_like(parameter))


def multiply_rate(training, factor):
    for group in training.optimizer.param_groups:
        group["lr"] *= factor


def overflow(training):
    training.network.gradient_factor = math.inf


def with_nan(inputs, targets, _):
    targets[0] = math.nan
    return inputs, targets


STRIKES = {
    "flipped-bit": flip_bit,
    "other-checkpoint": load_other_checkpoint,
    "other-learning-rate": lambda training: multiply_rate(training, training.arguments.magnitude),
    "learning-rate-zero": lambda training: multiply_rate(training, 0.0),
    "learning-rate-jump": lambda training: multiply_rate(training, 10**training.arguments.magnitude),
    "nan-labels": spoiled(with_nan),
    "inf-gradient": overflow,
    "lost-scale": overflow,
    "noisy-labels": spoiled(lambda inputs, targets, deviation: (inputs, targets + deviation * torch.randn_like(targets))),
}
