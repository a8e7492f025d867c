"""In-place changes of knobs: the file `knobs.live` beside the probe's socket.

    {"order": 7, "live": 2, "set": {"process_group_timeout_s": "1200"}}      null: the script's own value

The answer, a `knob` record, names the change by its number `live`.

It is a file for the same reasons as `stop.after`. It is checked at the end of a step, at most every CHECK_INTERVAL_NS, and read when it has
changed (it must be renamed into its place). Each rank acts for itself, so only knobs that need no agreement between ranks can be changed
here.
"""

import os

FILE = "knobs.live"
CHECK_INTERVAL_NS = 250_000_000
BYTES_MAX = 8192


class LiveOrder:
    def __init__(self, socket_path):
        self._path = os.path.join(os.path.dirname(os.path.abspath(socket_path)), FILE)
        self._next_check_ns = 0
        self._seen = None

    def step_ended(self, now_ns):
        """Returns the text of the file if it is new, or None."""
        if now_ns < self._next_check_ns:
            return None
        self._next_check_ns = now_ns + CHECK_INTERVAL_NS
        try:
            status = os.stat(self._path)
            this = (status.st_ino, status.st_mtime_ns)
            if this == self._seen:
                return None
            self._seen = this
            with open(self._path, encoding="utf-8") as file:
                return file.read(BYTES_MAX)
        except (OSError, ValueError):  # the usual case: no request
            return None
