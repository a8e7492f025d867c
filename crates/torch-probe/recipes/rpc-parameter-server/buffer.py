"""The gradients that wait on the server, and the time at which they are applied.

A batch is due when it has `threshold` gradients, or when no worker will add to it: every worker either waits for an answer to what it
has sent, or has nothing left to send. So the last gradients are applied although they do not fill a batch, and a
worker that leaves early does not block the others.

The number of gradients that a worker may send before it has to wait:

    sync     the rest of its share of the current update
    async    `in_flight` minus its gradients in the buffer; at most the rest of its share

Pure: no torch, no RPC, no clock. The caller holds a lock.
"""

from collections import Counter


def share(index, workers):
    """Returns the worker (from 0) that computes gradient `index`."""
    return index % workers


def dealt(first, end, worker, workers):
    """Returns how many of the gradients first … end-1 belong to a worker."""
    return len(range(first + (worker - first) % workers, end, workers))


class Buffer:
    """`done`: gradients applied by an earlier process. Entries are (worker, index, value)."""

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
        """The worker sends no more. All that it has sent has arrived: it leaves after its last answer."""
        self._gone.add(worker)

    def is_due(self):
        if not self._entries:
            return False
        return len(self._entries) >= self.threshold or not any(self._may_send(worker) for worker in range(self._workers))

    def take(self):
        """Returns the waiting gradients in the order of their indices, so that their mean does not depend on the order of arrival."""
        batch, self._entries = sorted(self._entries, key=lambda entry: entry[1]), []
        self.applied = self.end_of_update() if self._sync else self.applied + len(batch)
        return batch

    def end_of_update(self):
        """Returns the index after the last gradient of the current update (sync)."""
        return min(self.applied + self.threshold, self._total)

    def is_finished(self):
        """Returns whether no gradient waits and none will arrive."""
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
