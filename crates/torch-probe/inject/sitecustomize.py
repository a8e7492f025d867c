"""Starts Lockstep's probe in a training rank, then runs the sitecustomize that this file hides.

Python imports one `sitecustomize` at start-up: the first on sys.path, which PYTHONPATH makes this one. It runs in every Python process
below the launcher (torchrun, DataLoader workers, compile workers), so the decision is a few dictionary look-ups and everything else is
imported only in a rank. See lockstep_probe/gate.py for the reasons of the decision.
"""

import os
import sys


def _start_probe():
    env = os.environ
    if "LOCKSTEP_PROBE_SOCKET" not in env or "RANK" not in env:
        return
    try:
        import lockstep_probe

        lockstep_probe.start()
    except Exception:  # the probe must never prevent the start of a training script
        pass


def _run_next():
    """Loads the next sitecustomize on sys.path in place of this one; its failures are the same as without this one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start_probe()
_run_next()
