"""SIGTERM, and the ranks' agreement on the step after which all of them stop.

The signal only sets a flag; the loop checks it between two steps. There the ranks may differ: a signal reaches one before a
boundary and another after it, and a rank that stops alone leaves the others in a collective that never ends. So they agree,
through the launcher's key-value store and never by a collective:

    marked at the end of step S     write seen/RANK = S and wait, at most PATIENCE_S, for the others
    all of them at S                at = S: the signal came to all at the same boundary, as Lockstep's own stops do
    not all of them                 at = S + as many steps as fit into LEAD_S: by then the signal has reached everyone
    at the end of step `at`         write ready/RANK; rank 0 waits, at most READY_S, for all and writes go = yes or no

`at` is written once: the first proposal counts. Any answer except `yes`, a time-out or a missing store means: save what is possible,
alone (emergency.py).
"""

import math
import os
import signal
import time
from datetime import timedelta

import torch.distributed as dist

CONNECT_S = 60.0
PATIENCE_S = 0.5
LEAD_S = 1.0
READY_S = 10.0  # a launcher kills 30 s after its SIGTERM
STATUS = 128 + signal.SIGTERM  # the exit status that a shell reports for a process ended by SIGTERM


class Stopping:
    """`asked` becomes true at SIGTERM; `now` decides between two steps whether to stop there."""

    def __init__(self):
        self.asked = False
        self._at = None
        self._store = connect()
        signal.signal(signal.SIGTERM, self._mark)

    def _mark(self, _signal, _frame):
        self.asked = True

    def now(self, step, step_s):
        """Returns None to continue; True to stop here, together with all ranks at this boundary; False to stop here, alone."""
        if not self.asked:
            return None
        if self._store is None:
            return False
        try:
            if self._at is None:
                self._at = self._agree(step, step_s)
            if step < self._at:
                return None
            return step == self._at and self._all_ready()
        except (RuntimeError, ValueError):  # the store is gone, or did not answer in time
            return False

    def _agree(self, step, step_s):
        ranks = range(dist.get_world_size())
        self._store.set(f"seen/{dist.get_rank()}", str(step))
        deadline = time.monotonic() + PATIENCE_S
        together = False
        while not together and not self._store.check(["at"]) and time.monotonic() < deadline:
            together = self._store.check([f"seen/{rank}" for rank in ranks])
            time.sleep(0.01)
        if together:
            together = all(int(self._store.get(f"seen/{rank}")) == step for rank in ranks)
        proposal = step if together else step + max(2, math.ceil(LEAD_S / max(step_s, 1e-3)))
        return int(self._store.compare_set("at", "", str(proposal)))

    def _all_ready(self):
        rank, ranks = dist.get_rank(), range(dist.get_world_size())
        self._store.set(f"ready/{rank}", "1")
        if rank == 0:
            self._store.set("go", "yes" if self._wait([f"ready/{rank}" for rank in ranks], READY_S) else "no")
        return self._wait(["go"], READY_S + PATIENCE_S) and self._store.get("go") == b"yes"

    def _wait(self, keys, seconds):
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError:
            return False
        return True


def connect():
    """Returns a separate connection to the store of the ranks, with keys of this attempt only; None if it does not answer.

    Training works without it: then each rank stops on its own.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=CONNECT_S))
    except RuntimeError:
        return None
    store.set_timeout(timedelta(seconds=READY_S))
    attempt = f"{os.environ.get('LOCKSTEP_ATTEMPT', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    return dist.PrefixStore(f"resume/stop/{attempt}", store)
