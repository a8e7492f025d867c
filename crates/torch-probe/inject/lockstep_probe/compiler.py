"""Keeps torch.compile out of the probe's own code.

A compiler of Python frames inspects every frame that runs during compiled code. It would trace the probe's frames, which takes seconds and
causes warnings about code that is not the script's. So as soon as there is a compiler, each code object of the probe is marked as not to be
compiled. For functions that are called *from* a traced frame, the compiler checks an attribute instead, `_torchdynamo_disable`, which the
hooks have.
"""

import sys
import types

# Code that a knob adds to a script is part of its training, and is compiled with it.
NOT_OURS = ".knobs"


COMPILED = "torch.compile: the first steps hold its own time, own gradient norms and bytes kept for the backward pass are not measured, and knobs of the model cannot be turned"


def is_used():
    """Returns True if the compiler has compiled code of this process, or has tried to."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


def what_it_hides(fields):
    """Returns a note about a step of a script that compiles, or None. `fields`: those of the step's record."""
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
    """Returns every code object of the functions and classes that a module defines, including closures and lambdas."""
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
