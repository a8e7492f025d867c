"""Rank 0: the weights, the waiting gradients, the updates, and the answers to all workers.

    worker ── gradient(index, version, …) ──▶ Buffer ──due──▶ mean ▶ Adam ▶ version + 1
           ◀──────── Future: (version, weights) ────────────────────────┘

`gradient` runs asynchronously (`rpc.functions.async_execution`): it returns a Future at once, so waiting workers block no thread.
The Future completes when the batch with the gradient has been applied.
"""

import os
import signal
import sys
import threading
import time
from typing import NamedTuple

import meeting
import peers
import signals
import task
import torch
import torch.distributed.rpc as rpc
from buffer import Buffer
from torch.futures import Future
from torch.nn.utils import parameters_to_vector

HERE = os.path.dirname(os.path.abspath(__file__))
try:
    import lockstep_checkpoint
except ImportError:  # not in a run of Lockstep, which has it on PYTHONPATH: it is in the folder of the recipes
    sys.path.append(os.path.join(HERE, "..", "..", "inject"))
    import lockstep_checkpoint

GOODBYE_S = 5.0  # for workers to receive that the run stops

_server = None


def the_server():
    """The target of a worker's `rpc.remote("server", the_server)`."""
    return _server


class Answer(NamedTuple):
    """The answer to a gradient that was applied. Without weights: the run stops."""

    version: int
    weights: torch.Tensor = None
    held_s: float = 0.0  # from the gradient's arrival to this answer: not network time


class Start(NamedTuple):
    """The state with which a worker starts. Others may have started earlier: then `applied` is higher than `resumed_at`."""

    version: int
    applied: int  # gradients applied so far
    resumed_at: int  # gradients applied by an earlier process
    weights: torch.Tensor


class Gradient(NamedTuple):
    version: int  # the version of the weights of the gradient
    loss: float
    values: torch.Tensor
    answer: Future
    came: float


class Adam(torch.optim.Adam):
    """torch's own class with another name: DistributedOptimizer would replace torch.optim.Adam by a functional form, which cannot be
    watched."""


class ParameterServer:
    def __init__(self, arguments, workers, device):
        """`workers`: their ranks."""
        global _server
        self.arguments = arguments
        self.model, _ = task.make(arguments, device)
        self.optimizer = Adam(self.model.parameters(), lr=arguments.lr)
        self.version = 0
        self._lock = threading.Lock()  # for all fields below: many threads call
        self._workers = workers
        self._over = threading.Event()
        self._stopping = False
        self._failure = None  # why it ends, if it is a failure
        self._ended = []  # futures of workers that wait for the end of training
        self._next_weights = []  # futures of workers without a part in this update
        self._saved_version = None
        self._resumed_at = done = self._restore()
        total = arguments.steps if arguments.mode == "dist-autograd" else arguments.gradients
        self._buffer = Buffer(arguments.mode, arguments.batch_threshold, total, len(workers), arguments.in_flight, done)
        self._stop_asked = False
        _server = self

    # === rank 0's own thread ===

    def serve(self):
        """Returns when training is over: True if it was stopped. Raises PeerLost if a worker is gone."""
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        say(f"serving {parameters} parameters to {len(self._workers)} workers, {self.arguments.mode}, from step {self.version}")
        with self._lock:
            self._finish_if_done()  # a checkpoint of the end has nothing left to do; no worker waits yet
        everyone = peers.Peers(self._workers)
        try:
            while not self._over.wait(peers.LOOK_S):
                if self._stop_asked:  # first: workers that were also told to stop may be gone by now
                    self._stop(everyone)
                    return True
                everyone.look()
        except peers.PeerLost as loss:
            self._fail(loss)
            raise
        return False

    def _ask_to_stop(self, _signal, _frame):
        self._stop_asked = True

    def _stop(self, everyone):
        with self._lock:
            self._stopping = True
            self._save()
            waiting = [gradient.answer for _, _, gradient in self._buffer.take()] + self._next_weights
        give([(future, Answer(self.version)) for future in waiting] + [(future, True) for future in self._ended])
        say(f"stopped after step {self.version}, as asked for")
        everyone.all_gone_within(GOODBYE_S)

    def _fail(self, error):
        with self._lock:
            self._stopping, self._failure = True, error
            waiting = [gradient.answer for _, _, gradient in self._buffer.take()] + self._next_weights + self._ended
        for future in waiting:
            future.set_exception(error)

    # === what workers call ===

    def start(self):
        with self._lock:
            return Start(self.version, self._buffer.applied, self._resumed_at, self._weights())

    @rpc.functions.async_execution
    def gradient(self, worker, index, version, loss, values):
        with self._lock:
            if self._is_stopping():
                return completed(Answer(self.version))
            answer = Future()
            self._buffer.add(worker, index, Gradient(version, loss, values, answer, time.perf_counter()))
            signals.report(train_rpc_buffer_depth=len(self._buffer))
            answered = self._apply_what_is_due()
        give(answered)
        return answer

    @rpc.functions.async_execution
    def weights_after(self, version):
        """For a worker that has no part in the update of `version`."""
        with self._lock:
            if self._is_stopping() or self.version > version:
                return completed(Answer(self.version, None if self._stopping else self._weights()))
            self._next_weights.append(Future())
            return self._next_weights[-1]

    def leave(self, worker):
        """The worker sends no more gradients, although its share is not complete. The others do not wait for it."""
        with self._lock:
            self._buffer.leave(worker)
            answered = self._apply_what_is_due() or self._finish_if_done()
        give(answered)

    @rpc.functions.async_execution
    def ended(self):
        """Completes when training is over for all; the value says whether it was stopped."""
        with self._lock:
            if self._is_stopping() or self._over.is_set():
                return completed(self._stopping)
            self._ended.append(Future())
            return self._ended[-1]

    # --mode dist-autograd

    def parameters(self):
        """Returns (names, references) for a DistributedOptimizer."""
        return [name for name, _ in self.model.named_parameters()], [rpc.RRef(parameter) for parameter in self.model.parameters()]

    def weights_to_learn(self):
        """Returns (version, tensors): in a distributed autograd context the backward pass returns through them.

        They are copies, because a parameter itself would become a leaf on the worker, and its gradient would stay there.
        """
        return self.version, [parameter.to("cpu", copy=True) for parameter in self.model.parameters()]

    def stepped(self, version, loss):
        """A worker's DistributedOptimizer has stepped here, with a gradient of the weights at `version`. Returns the new version, or -1 to
        stop."""
        with self._lock:
            if self._is_stopping():
                return -1
            self._buffer.applied = self.version + 1  # before it is saved
            self._finish_update([(0, 0, Gradient(version, loss, None, None, 0.0))])
            version = self.version
            signals.step(version)  # as many optimizers step here as there are workers, and the steps of none are all steps
            answered = self._finish_if_done()
        give(answered)
        return version

    def _is_stopping(self):
        if self._failure is not None:
            raise self._failure
        return self._stopping

    # === an update; the lock is held ===

    def _apply_what_is_due(self):
        """Returns the answers to send after the lock is released."""
        if not self._buffer.is_due():
            return []
        batch = self._buffer.take()
        self._update(batch)
        weights, now = self._weights(), time.perf_counter()
        answered = [(gradient.answer, Answer(self.version, weights, now - gradient.came)) for _, _, gradient in batch]
        answered += [(future, Answer(self.version, weights)) for future in self._next_weights]
        self._next_weights = []
        return answered + self._finish_if_done()

    def _update(self, batch):
        mean = torch.stack([gradient.values for _, _, gradient in batch]).mean(0)
        taken = 0
        for parameter in self.model.parameters():
            piece = mean[taken : taken + parameter.numel()]
            parameter.grad = piece.view_as(parameter).to(parameter.device)
            taken += parameter.numel()
        self._report_staleness(batch)
        self.optimizer.step()
        self._finish_update(batch, reported=True)

    def _report_staleness(self, batch):
        for _, _, gradient in batch:
            signals.report(train_gradient_staleness_steps=self.version - gradient.version)

    def _finish_update(self, batch, reported=False):
        if not reported:
            self._report_staleness(batch)
        staleness = max(self.version - gradient.version for _, _, gradient in batch)
        self.version += 1
        if self.version % self.arguments.log_every == 0 or self.version == 1:
            loss = sum(gradient.loss for _, _, gradient in batch) / len(batch)
            # Nine digits identify any 32-bit number: resumed losses can be compared with uninterrupted ones.
            say(f"step {self.version} loss {loss:.9g} gradients {len(batch)} staleness {staleness}")
        if self.version % self.arguments.checkpoint_every == 0:
            self._save()

    def _finish_if_done(self):
        """Returns the answers to send then."""
        if not self._buffer.is_finished() or self._over.is_set():
            return []
        self._save()
        say(f"done: {self.version} updates")
        self._over.set()
        return [(future, False) for future in self._ended]

    def _weights(self):
        return parameters_to_vector(self.model.parameters()).detach().cpu().clone()

    # === checkpoints ===

    def _save(self):
        if not self.arguments.checkpoint_dir or self._saved_version == self.version:
            return
        progress = {"step": self.version, "gradients": self._buffer.applied}
        state = {"model": self.model.state_dict(), "progress": progress}
        if self.arguments.mode != "dist-autograd":  # there, the DistributedOptimizers have the moments, one per worker
            state["optimizer"] = self.optimizer.state_dict()
        path = lockstep_checkpoint.save(state, self.arguments.checkpoint_dir, self.version)
        self._saved_version = self.version
        say(f"checkpoint {path}")

    def _restore(self):
        """Returns how many gradients were applied before."""
        path = os.environ.get("LOCKSTEP_RESUME_FROM") or self.arguments.resume
        if path == "latest":
            path = lockstep_checkpoint.newest(self.arguments.checkpoint_dir) if self.arguments.checkpoint_dir else None
        if not path:
            return 0
        if not os.path.exists(path):
            raise SystemExit(f"there is no checkpoint {path} to go on from")
        state = lockstep_checkpoint.load(path)
        self.model.load_state_dict(state["model"])
        if "optimizer" in state:
            moments = {int(parameter): moment for parameter, moment in state["optimizer"].get("state", {}).items()}
            self.optimizer.load_state_dict({"state": moments, "param_groups": state["optimizer"]["param_groups"]})
        self.version = self._saved_version = state["progress"]["step"]
        say(f"resumed from {path} at step {self.version}")
        return state["progress"]["gradients"]


def completed(value):
    future = Future()
    future.set_result(value)
    return future


def give(answered):
    """Runs outside the lock: a completed Future may run other code at once."""
    for future, answer in answered:
        future.set_result(answer)


def say(line):
    print(line, flush=True)
