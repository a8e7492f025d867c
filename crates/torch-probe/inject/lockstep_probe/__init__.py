"""Lockstep's torch probe: watches one training rank from inside and reports to the node's agent.

    gate     may this process be watched?            imports  run code when a torch module has been imported
    channel  one JSON object a datagram, never waits  record   the fields every record has, and what JSON cannot say
    hooks    where the probe touches torch            cycle    what happened between two optimizer steps, as intervals
    timeline host clock or CUDA events                norms    gradient norms without a collective
    identity who this rank is                         errors   the last words of a failing rank
    saves    checkpoints: begun, done, failed         stop     the end after an agreed step

Rules: never raise into user code, never wait, drop and count instead; LOCKSTEP_PROBE=off turns everything off. Standard
library and torch only; nothing here imports torch by itself.
"""

from . import gate
from .stop import StopTraining

__all__ = ["StopTraining", "probe", "start"]

probe = None


def start():
    """Starts the probe if this process is a rank to be watched; safe to call twice."""
    global probe
    if probe is None and gate.may_watch():
        from .probe import Probe

        probe = Probe()
        probe.install()
