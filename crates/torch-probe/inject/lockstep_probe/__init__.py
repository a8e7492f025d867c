"""Lockstep's torch probe: watches one training rank from inside and reports to the node's agent.

    gate     may this process be watched?             imports  run code when a torch module has been imported
    channel  one JSON object a datagram, never waits  record   the fields every record has, and what JSON cannot say
    hooks    where the probe touches torch            cycle    what happened between two optimizer steps, as intervals
    timeline host clock or CUDA events                norms    gradient norms without a collective
    identity who this rank is                         errors   the error report of a failing rank
    saves    checkpoints: start, end, failure         stop     the stop after an agreed step
    written  which files a save wrote                 reports  values that only the script can measure
    compiler keeps torch.compile out of the probe
    loggers  what the script logs itself              memory   the state of memory at a failed allocation
    saved_tensors  bytes kept for the backward pass   knobs    changes in the script that LOCKSTEP_KNOBS requests
    live     in-place changes of knobs                meshes   how the script arranges its ranks
    page     the current phase of the rank            members  the ranks of each process group
    waits    time spent waiting for other ranks       server   stacks and counters, on request of the agent
    optimizing  learning rates, number of parameters  inputs   what batches hold, in a few numbers
    replicas checksums of replicated parameters       own_norms  gradients before they are combined

Rules: never raise into user code, never wait, drop and count instead; LOCKSTEP_PROBE=off turns everything off. Standard
library and torch only; nothing here imports torch by itself.
"""

from . import gate
from .stop import StopTraining

__all__ = ["StopTraining", "probe", "report", "start", "step"]

probe = None


def start():
    """Starts the probe if this process is a rank that may be watched. A second call does nothing."""
    global probe
    if probe is None and gate.may_watch():
        from .probe import Probe

        probe = Probe()
        probe.install()


def report(**values):
    """Adds values that only the script can measure to the current step: see reports.py for the names. Does nothing if the probe is off."""
    if _is_on():
        probe.call(probe.reports.add, values)


def step(number=None):
    """Marks the end of a step, for a loop that does not use an optimizer of torch. After the first call, only these calls count.

    `number`: the number of the step, for ranks that count together. A number that is not higher than the last one is ignored. Does nothing
    if the probe is off.
    """
    if _is_on():
        probe.call(probe.marked, number)
        if probe.stop.due:
            probe.end_after_step()


def _is_on():
    return hasattr(probe, "call")  # without a probe, a script that imports the module of that name gets the module behind it
