"""Whether the others still answer. Who waits for an answer that may take long looks here meanwhile, so nobody waits for the dead.

A peer that died shows at once: its connection is gone. One that is stopped or cut off shows after the time-out of RPC.
"""

import threading
import time

import meeting
import torch.distributed.rpc as rpc

LOOK_S = 0.5


class PeerLost(RuntimeError):
    """A rank that this one depends on is gone, so the run cannot go on."""


class Peers:
    def __init__(self, ranks):
        self._calls = {rank: None for rank in ranks}

    def look(self):
        """Raises PeerLost when one does not answer. Call it every LOOK_S or so; it never waits."""
        for rank in list(self._calls):
            self._look_at(rank)

    def all_gone_within(self, seconds):
        """Waits until none is left; False when some still answer then."""
        deadline = time.monotonic() + seconds
        while self._calls and time.monotonic() < deadline:
            for rank in list(self._calls):
                try:
                    self._look_at(rank)
                except PeerLost:
                    del self._calls[rank]
            time.sleep(0.02)
        return not self._calls

    def _look_at(self, rank):
        call = self._calls[rank]
        try:
            if call is None or (call.done() and call.value()):
                self._calls[rank] = rpc.rpc_async(meeting.name_of(rank), here)
        except RuntimeError as error:
            raise PeerLost(f"rank {rank} ({meeting.name_of(rank)}) is gone: {first_line(error)}") from None


def here():
    return True


def wait(future, peers):
    """The future's value. Unlike `future.wait()` it can be interrupted by a signal, and ends when a peer is lost."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(LOOK_S):
        peers.look()
    return future.value()


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
