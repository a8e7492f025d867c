"""Checks whether the others still answer. A rank that waits for a long time calls this regularly, so that it does not wait for a dead peer.

A peer that died is detected at once: its connection is gone. One that is stopped or disconnected is detected after the time-out of RPC.
"""

import threading
import time

import meeting
import torch.distributed.rpc as rpc

LOOK_S = 0.5


class PeerLost(RuntimeError):
    """A required rank is gone, so the run cannot continue."""


class Peers:
    def __init__(self, ranks):
        self._calls = {rank: None for rank in ranks}

    def look(self):
        """Raises PeerLost if one does not answer. Call it about every LOOK_S; it never waits."""
        for rank in list(self._calls):
            self._look_at(rank)

    def all_gone_within(self, seconds):
        """Waits until no peer is left; returns False if some still answer after that time."""
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
    """Returns the future's value. Unlike `future.wait()`, a signal can interrupt it, and it ends when a peer is lost."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(LOOK_S):
        peers.look()
    return future.value()


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
