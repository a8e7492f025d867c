"""Keeps torch.compile out of the probe's own code.

A compiler of Python frames looks at every frame that runs while compiled code does. It would trace the probe's (seconds, and warnings about code
that is not the script's), so as soon as there is a compiler each code object of ours is marked to be run as it is. What is called *from* a frame that
is being traced is asked for an attribute instead, `_torchdynamo_disable`, which the hooks have.
"""

import sys
import types

# What a knob puts into a script takes part in its training, and is to be compiled with it.
NOT_OURS = ".knobs"


COMPILED = "torch.compile: the first steps hold its own time, bytes kept for the backward pass are not measured, and knobs of the model cannot be turned"


def what_it_hides(fields):
    """A note about a step of a script that compiles, or None: `fields` are those of its record."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or not utils.counters["frames"]["ok"]:
        return None
    absent = [name for name in ("forward_s", "backward_s", "loss") if fields.get(name) is None]
    return f"torch.compile: {', '.join(absent)} of a step are not seen, compiled code holds them" if absent else COMPILED


def hide(_probe, eval_frame):
    for name, module in list(sys.modules.items()):
        if name.startswith(__package__ + ".") and NOT_OURS not in name:
            for code in codes(vars(module), name):
                eval_frame.skip_code(code)


def codes(names, module):
    """Every code object behind the functions and classes that a module defines, closures and lambdas too."""
    for value in list(names.values()):
        value = getattr(value, "__func__", getattr(value, "fget", value))  # static methods and properties
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            yield from codes(vars(value), module)
        elif isinstance(value, types.FunctionType):
            yield from nested(value.__code__)


def nested(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)
