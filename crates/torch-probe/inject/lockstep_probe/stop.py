"""Stops after an agreed step: all ranks act at the end of the same optimizer step, without a collective.

The agent writes `stop.after` ({"step": S}) beside the probe's socket. A file needs no receiver: it also reaches a rank that
starts late, and survives restarts of the agent. It is checked at the end of a step, at most every CHECK_INTERVAL_NS; S is
seconds ahead of every rank when it is written, so all ranks read it in time. A rank that is already past S acts at once.

At the end of step S a rank does what its script supports. A script with a SIGTERM handler gets that signal at this point:
its action on preemption (set a flag, save at the end of the iteration) happens at the same step on all ranks. In any other
script StopTraining is raised out of `optimizer.step()`: a SystemExit with code 0, which runs `finally` blocks and exit functions,
prints no traceback, and may be caught to save:

    try:
        train()
    except lockstep_probe.StopTraining as stop:
        save(stop.step)
"""

import json
import os
import signal
import threading

FILE = "stop.after"
CHECK_INTERVAL_NS = 250_000_000


class StopTraining(SystemExit):
    """Raised at the end of the step after which the run stops; scripts need not catch it."""

    def __init__(self, step):
        super().__init__(0)
        self.step = step


class StopOrder:
    def __init__(self, socket_path):
        self.step = None
        self.due = False
        self._path = os.path.join(os.path.dirname(os.path.abspath(socket_path)), FILE)
        self._next_check_ns = 0
        self._acted = False

    def step_ended(self, step, now_ns):
        """Returns True if this step is the last one; only once."""
        if self.step is None:
            if now_ns < self._next_check_ns:
                return False
            self._next_check_ns = now_ns + CHECK_INTERVAL_NS
            self.step = self._read()
        if self.step is None or self._acted or step < self.step:
            return False
        self._acted = self.due = True
        return True

    def how(self):
        """Returns `signal` if the script has a handler of its own, else `exit`."""
        handler = signal.getsignal(signal.SIGTERM)
        return "signal" if callable(handler) or handler is None else "exit"  # None: a handler that is not Python's

    def act(self):
        """Must be called where an exception reaches the script."""
        self.due = False
        if threading.current_thread() is not threading.main_thread():
            # If torch steps the optimizer in another thread, an exception would end only that thread.
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.how() == "signal":
            signal.raise_signal(signal.SIGTERM)
        else:
            raise StopTraining(self.step)

    def _read(self):
        if not os.access(self._path, os.F_OK):  # costs a third of an open that fails
            return None
        try:
            with open(self._path, encoding="utf-8") as file:
                step = json.load(file)["step"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return step if type(step) is int else None
