"""The arguments that the recipes share, and types that refuse invalid values with an explanation."""

import argparse
import math

from .model import HEAD_WIDTH


def parser(description, epilog=None):
    parser = argparse.ArgumentParser(description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=at_least(1), default=60)
    parser.add_argument("--lr", type=positive, default=3e-3)
    parser.add_argument("--warmup", type=at_least(0), default=5, help="steps over which the learning rate rises")
    parser.add_argument("--batch-size", type=at_least(1), default=8, help="sequences a step, for each rank that gets data of its own")
    parser.add_argument("--context", type=at_least(1), default=32, help="characters a sequence")
    parser.add_argument("--layers", type=at_least(1), default=4, help="transformer blocks")
    parser.add_argument("--width", type=head_widths, default=64, help=f"of a block, a multiple of {HEAD_WIDTH}")
    parser.add_argument("--dropout", type=share, default=0.1)
    parser.add_argument("--grad-clip", type=not_negative, default=0.0, help="largest gradient norm; 0 leaves gradients alone")
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--num-workers", type=at_least(0), default=0, help="DataLoader worker processes a rank")
    parser.add_argument("--log-every", type=at_least(1), default=10)
    parser.add_argument("--validate-every", type=at_least(1), default=20)
    parser.add_argument("--step-delay-ms", type=not_negative, default=0.0, help="sleep in each step, to pace a demonstration")
    group = parser.add_argument_group("checkpoints")
    group.add_argument("--checkpoint-dir", default=None, help="the same folder for all ranks; without it nothing is saved")
    group.add_argument("--checkpoint-every", type=at_least(1), default=20, help="steps; the last step and a stop save as well")
    group.add_argument(
        "--resume", default=None, metavar="PATH|latest",
        help="go on from this checkpoint, or from the newest whole one in --checkpoint-dir; LOCKSTEP_RESUME_FROM goes before it",
    )
    return parser


def at_least(least):
    def whole(text):
        number = _number(text, int, "a whole number")
        return _check(number >= least, number, f"{number} is too small: give {least} or more")

    return whole


def positive(text):
    number = _number(text, float, "a number")
    return _check(math.isfinite(number) and number > 0, number, f"{text} is not above zero")


def not_negative(text):
    number = _number(text, float, "a number")
    return _check(math.isfinite(number) and number >= 0, number, f"{text} is below zero")


def share(text):
    number = _number(text, float, "a number")
    return _check(0 <= number < 1, number, f"{text} is no share: give 0 or more, and less than 1")


def head_widths(text):
    number = _number(text, int, "a whole number")
    return _check(number > 0 and number % HEAD_WIDTH == 0, number, f"{number} cannot be split into attention heads: give a multiple of {HEAD_WIDTH}")


def _number(text, kind, what):
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None


def _check(holds, value, otherwise):
    if not holds:
        raise argparse.ArgumentTypeError(otherwise)
    return value
