"""The gradients that wait on the server, and when they are applied.

A batch is due when it holds `threshold` gradients, or when nobody will add to it: every worker either waits for an answer to what it
has sent already, or has nothing left to send. So the last gradients are applied though they fill no batch, and a
worker that leaves early keeps nobody waiting.

How many a worker may still send before it has to wait:

    sync     its share of the current update that has not come yet
    async    as many as fit beside those of its that are in the buffer, up to `in_flight`; and never more than are left of its share

Pure: no torch, no RPC, no clock. The caller holds a lock.
"""

from collections import Counter


def share(index, workers):
    """The worker (from 0) that computes gradient `index`."""
    return index % workers


def dealt(first, end, worker, workers):
    """How many of the gradients first … end-1 fall to a worker."""
    return len(range(first + (worker - first) % workers, end, workers))


class Buffer:
    """`done`: gradients applied before, by an earlier process. Entries are (worker, index, anything)."""

    def __init__(self, mode, threshold, total, workers, in_flight, done=0):
        self.threshold = threshold
        self.applied = done
        self._sync = mode == "sync"
        self._total = total
        self._workers = workers
        self._in_flight = in_flight
        self._entries = []
        self._left = {worker: dealt(done, total, worker, workers) for worker in range(workers)}
        self._gone = set()

    def __len__(self):
        return len(self._entries)

    def add(self, worker, index, content):
        self._entries.append((worker, index, content))
        self._left[worker] -= 1

    def leave(self, worker):
        """It sends no more. What it has sent is here: it leaves after its last answer."""
        self._gone.add(worker)

    def is_due(self):
        if not self._entries:
            return False
        return len(self._entries) >= self.threshold or not any(self._may_send(worker) for worker in range(self._workers))

    def take(self):
        """The waiting gradients, in the order of their indices: their mean is the same whichever came first."""
        batch, self._entries = sorted(self._entries, key=lambda entry: entry[1]), []
        self.applied = self.end_of_update() if self._sync else self.applied + len(batch)
        return batch

    def end_of_update(self):
        """Behind the last gradient of the update that is collected now (sync)."""
        return min(self.applied + self.threshold, self._total)

    def is_finished(self):
        """Nothing waits and nothing will come."""
        return not self._entries and (self.applied >= self._total or all(self._is_through(worker) for worker in range(self._workers)))

    def _is_through(self, worker):
        return worker in self._gone or self._left[worker] <= 0

    def _may_send(self, worker):
        if self._is_through(worker):
            return 0
        waiting = Counter(worker for worker, _, _ in self._entries)[worker]
        if self._sync:
            return dealt(self.applied, self.end_of_update(), worker, self._workers) - waiting
        return self._in_flight - waiting
