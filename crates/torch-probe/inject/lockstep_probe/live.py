"""Knobs that are turned while a run goes on: the file `knobs.live` beside the probe's socket.

    {"order": 7, "live": 2, "set": {"process_group_timeout_s": "1200"}}      a null for a value: as the script itself has it

The answer, a `knob` record, names the change by its number `live`.

A file for the reasons that `stop.after` is one. It is looked for at the end of a step, LOOK_EVERY_NS apart at most, and read when it has
changed (it must be renamed into its place). Each rank acts for itself, so only what needs no agreement between ranks can be turned here.
"""

import os

FILE = "knobs.live"
LOOK_EVERY_NS = 250_000_000
BYTES_MAX = 8192


class LiveOrder:
    def __init__(self, socket_path):
        self._path = os.path.join(os.path.dirname(os.path.abspath(socket_path)), FILE)
        self._next_look_ns = 0
        self._seen = None

    def step_ended(self, now_ns):
        """The text of a file that is new, or None."""
        if now_ns < self._next_look_ns:
            return None
        self._next_look_ns = now_ns + LOOK_EVERY_NS
        try:
            status = os.stat(self._path)
            this = (status.st_ino, status.st_mtime_ns)
            if this == self._seen:
                return None
            self._seen = this
            with open(self._path, encoding="utf-8") as file:
                return file.read(BYTES_MAX)
        except (OSError, ValueError):  # mostly: nobody wants anything
            return None
