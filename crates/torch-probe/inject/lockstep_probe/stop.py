"""The end after an agreed step: all ranks act at the end of the same optimizer step, without a collective.

The agent writes `stop.after` ({"step": S}) beside the probe's socket. A file, because it needs no receiver: it is there for a rank that
starts late, and stays through restarts of the agent. It is looked for at the end of a step, LOOK_EVERY_NS apart at most; S lies
seconds ahead of every rank when it is written, so all know it in time. A rank that is past S already acts at once.

At the end of step S a rank does what its script is prepared for. A script with a SIGTERM handler gets that signal, in this very place:
what it does when it is preempted (set a flag, save at the end of the iteration) happens at the same step everywhere. In any other
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
LOOK_EVERY_NS = 250_000_000


class StopTraining(SystemExit):
    """Raised at the end of the step after which the run was to stop; nobody has to catch it."""

    def __init__(self, step):
        super().__init__(0)
        self.step = step


class StopOrder:
    def __init__(self, socket_path):
        self.step = None
        self.due = False
        self._path = os.path.join(os.path.dirname(os.path.abspath(socket_path)), FILE)
        self._next_look_ns = 0
        self._acted = False

    def step_ended(self, step, now_ns):
        """Whether this step is the last one; true once."""
        if self.step is None:
            if now_ns < self._next_look_ns:
                return False
            self._next_look_ns = now_ns + LOOK_EVERY_NS
            self.step = self._read()
        if self.step is None or self._acted or step < self.step:
            return False
        self._acted = self.due = True
        return True

    def how(self):
        """`signal` where the script has a handler of its own, else `exit`."""
        handler = signal.getsignal(signal.SIGTERM)
        return "signal" if callable(handler) or handler is None else "exit"  # None: a handler that is not Python's

    def act(self):
        """Must be called where an exception reaches the script."""
        self.due = False
        if threading.current_thread() is not threading.main_thread():
            # Where torch steps the optimizer in a thread of its own, an exception would end that thread alone.
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.how() == "signal":
            signal.raise_signal(signal.SIGTERM)
        else:
            raise StopTraining(self.step)

    def _read(self):
        if not os.access(self._path, os.F_OK):  # a third of the price of an open that fails
            return None
        try:
            with open(self._path, encoding="utf-8") as file:
                step = json.load(file)["step"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return step if type(step) is int else None
