"""Ranks 1…, `--mode sync` and `--mode async`: fetch weights, compute a gradient, send it, continue with the returned weights."""

import threading
import time

import faults
import peers
import server
import signals
import task
import torch.distributed.rpc as rpc
from buffer import share
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def train(arguments, rank, device):
    """Returns when all workers are done: True if the run was stopped."""
    worker = Worker(arguments, rank, device)
    stopped = worker.train_in_step() if arguments.mode == "sync" else worker.train_ahead()
    return stopped or worker.wait(worker.server.rpc_async(timeout=0).ended())


class Worker:
    def __init__(self, arguments, rank, device):
        self.arguments, self.rank, self.device = arguments, rank, device
        self.number = rank - 1  # among the workers
        self.model, text = task.make(arguments, device)
        self.server = rpc.remote("server", server.the_server)  # an RRef: calls through it run where the object lives
        self._peers = peers.Peers([0])
        start = self.server.rpc_sync().start()
        self.version = start.version
        # In sync mode, others have continued only with updates without this worker's part. Otherwise its part does not depend on its start.
        self.first = start.applied if arguments.mode == "sync" else start.resumed_at
        self._put(start.weights)
        self._batches = task.batches(text, [index for index in range(self.first, arguments.gradients) if self._is_own(index)])

    def _is_own(self, index):
        return share(index, self.arguments.workers) == self.number

    def wait(self, future):
        return peers.wait(future, self._peers)

    # === sync ===

    def train_in_step(self):
        """Each update: computes this worker's share of its gradients, all of the same weights, then waits until it is applied."""
        first = self.first
        while first < self.arguments.gradients:
            end = min(first + self.arguments.batch_threshold, self.arguments.gradients)
            own = [index for index in range(first, end) if self._is_own(index)]
            if own and faults.strike(self.arguments, self.rank, self.version + 1):
                self.server.rpc_sync().leave(self.number)
                return False
            # No time-out: an answer takes as long as the slowest worker. Meanwhile `wait` checks that the server is alive.
            sent = [self._send(index) for index in own] or [self.server.rpc_async(timeout=0).weights_after(self.version)]
            answers = [self.wait(future) for future in sent]
            if answers[-1].weights is None:
                return True
            self._take(answers[-1])
            first = end
        return False

    # === async ===

    def train_ahead(self):
        """Has up to `in_flight` gradients under way; each is computed with the newest weights at its start."""
        under_way = UnderWay(self._peers)
        for index in range(self.first, self.arguments.gradients):
            if not self._is_own(index):
                continue
            stopped, newest = under_way.wait_until(self.arguments.in_flight - 1)
            if stopped:
                return True
            self._take(newest)
            if faults.strike(self.arguments, self.rank, self.version + 1):
                # From here on the server must not wait for this worker, or the last gradients would never be answered.
                self.server.rpc_sync().leave(self.number)
                break
            under_way.add(self._send(index))
        stopped, newest = under_way.wait_until(0)
        self._take(newest)
        return stopped

    # === both ===

    def _send(self, index):
        """Computes gradient `index`, the next of this worker, and sends it. Returns the Future of the server's answer."""
        if self.arguments.step_delay_ms > 0:
            time.sleep(self.arguments.step_delay_ms / 1000)
        inputs, targets = next(self._batches)
        loss = self.model(inputs.to(self.device), targets.to(self.device))
        loss.backward()
        values = parameters_to_vector(parameter.grad for parameter in self.model.parameters()).cpu()
        self.model.zero_grad(set_to_none=True)
        sent = time.perf_counter()
        future = self.server.rpc_async(timeout=0).gradient(self.number, index, self.version, loss.item(), values)
        future.add_done_callback(lambda done: report_latency(done, sent))
        return future

    def _take(self, answer):
        """Uses newer weights if they are newer: an update is a step, the same for all ranks."""
        if answer is None or answer.version <= self.version:
            return
        self._put(answer.weights)
        self.version = answer.version
        signals.step(self.version)

    def _put(self, weights):
        vector_to_parameters(weights.to(self.device), self.model.parameters())


def report_latency(done, sent):
    """Reports the round-trip time, without the time for which the server kept the answer until the batch was full."""
    took = time.perf_counter() - sent
    try:
        answer = done.value()
    except RuntimeError:  # the code that waits for the future reports it
        return
    if answer.weights is not None:
        signals.report(train_rpc_seconds=max(0.0, took - answer.held_s))


class UnderWay:
    """The gradients that are not answered yet. Answers arrive on RPC's own threads, in any order."""

    def __init__(self, others):
        self._peers = others
        self._count = 0
        self._changed = threading.Condition()
        self._failure = None
        self._stopped = False
        self._newest = None

    def add(self, future):
        with self._changed:
            self._count += 1
        future.add_done_callback(self._answered)

    def wait_until(self, at_most):
        """Waits until at most `at_most` are under way. Returns (whether the run must stop, the newest answer or None)."""
        with self._changed:
            while self._count > at_most and self._failure is None:
                if not self._changed.wait(peers.LOOK_S):
                    self._peers.look()
            if self._failure is not None:
                raise self._failure
            return self._stopped, self._newest

    def _answered(self, future):
        with self._changed:
            try:
                answer = future.value()
                if answer.weights is None:
                    self._stopped = True
                elif self._newest is None or answer.version > self._newest.version:
                    self._newest = answer
            except RuntimeError as error:
                self._failure = error
            self._count -= 1
            self._changed.notify()
