"""Decides whether this process is a training rank that torchrun started, or another process that inherits its environment.

torchrun itself does not have LOCAL_RANK and TORCHELASTIC_RUN_ID; its direct workers have both. The first Python in a worker signs the
environment with its pid. Processes that it starts later (spawned DataLoader workers, compile workers, `subprocess`) inherit a foreign
signature and are not watched. A rank that replaces itself by exec keeps its pid and is watched again. Parent pids are not used, because a
shell or `numactl` between torchrun and Python changes them. Forked children run no start-up code; probe.py turns the inherited probe off in
them through os.register_at_fork.
"""

import os

SIGNATURE = "LOCKSTEP_PROBE_PID"
NEEDED = ("LOCKSTEP_PROBE_SOCKET", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")


def may_watch(environ=os.environ):
    """Returns True in a direct worker of torchrun. Signs the environment so that its children are refused."""
    if environ.get("LOCKSTEP_PROBE", "").lower() in ("off", "0", "false", "no"):
        return False
    if not all(environ.get(name) for name in NEEDED):
        return False
    own = str(os.getpid())
    if environ.setdefault(SIGNATURE, own) != own:
        return False
    return True
