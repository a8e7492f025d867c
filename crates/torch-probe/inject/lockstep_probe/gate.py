"""Decides whether this process is a training rank started by torchrun, as opposed to anything else that inherits its environment.

torchrun itself has no LOCAL_RANK and TORCHELASTIC_RUN_ID; its direct workers have both. The first Python in a worker signs the
environment with its pid: whatever it starts later (spawned DataLoader workers, compile workers, `subprocess`) inherits
a foreign signature and stays out, while a rank that replaces itself by exec keeps its pid and is watched again. Parent pids were
not used: a shell or `numactl` between torchrun and Python changes them. Forked children run no start-up code; probe.py turns
the inherited probe off in them through os.register_at_fork.
"""

import os

SIGNATURE = "LOCKSTEP_PROBE_PID"
NEEDED = ("LOCKSTEP_PROBE_SOCKET", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")


def may_watch(environ=os.environ):
    """True in a direct worker of torchrun; signs the environment so that its children are refused."""
    if environ.get("LOCKSTEP_PROBE", "").lower() in ("off", "0", "false", "no"):
        return False
    if not all(environ.get(name) for name in NEEDED):
        return False
    own = str(os.getpid())
    if environ.setdefault(SIGNATURE, own) != own:
        return False
    return True
