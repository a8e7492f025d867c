"""Lockstep's torch probe: watches one training rank from inside and reports to the node's agent.

    gate     may this process be watched?            imports  run code when a torch module has been imported
    channel  one JSON object a datagram, never waits  record   the fields every record has, and what JSON cannot say
    hooks    where the probe touches torch            cycle    what happened between two optimizer steps, as intervals
    timeline host clock or CUDA events                norms    gradient norms without a collective
    identity who this rank is                         errors   the last words of a failing rank
    saves    checkpoints: begun, done, failed         stop     the end after an agreed step
    written  which files a save wrote               reports  what only the script can measure
    compiler keeps torch.compile out of all this
    loggers  what the script logs itself              memory   what there was when it was too little
    saved_tensors  bytes kept for the backward pass   knobs    what is changed in the script, where LOCKSTEP_KNOBS asks for it
    live     knobs turned while a run goes on         meshes   how the script arranges its ranks
    page     what the rank does right now             members  the ranks of each process group
    waits    time spent waiting for other ranks       server   stacks and counters, for whoever asks from outside
    optimizing  learning rates, number of parameters  inputs   what batches hold, in a few numbers

Rules: never raise into user code, never wait, drop and count instead; LOCKSTEP_PROBE=off turns everything off. Standard
library and torch only; nothing here imports torch by itself.
"""

from . import gate
from .stop import StopTraining

__all__ = ["StopTraining", "probe", "report", "start", "step"]

probe = None


def start():
    """Starts the probe if this process is a rank to be watched; safe to call twice."""
    global probe
    if probe is None and gate.may_watch():
        from .probe import Probe

        probe = Probe()
        probe.install()


def report(**values):
    """Adds values that only the script can measure to the step under way: see reports.py for the names. Nothing where the probe is off."""
    if _is_on():
        probe.call(probe.reports.add, values)


def step(number=None):
    """The end of a step, for a loop that steps no optimizer of torch's; from the first call on, only these calls count.

    `number`: which step it was, where ranks count together; one that is no later than the last is no step. Nothing where the probe is off.
    """
    if _is_on():
        probe.call(probe.marked, number)
        if probe.stop.due:
            probe.end_after_step()


def _is_on():
    return hasattr(probe, "call")  # who imports the module of that name, without a probe, finds the module under it
