"""The last words of a failing rank: an `error` record (with the memory's state where that was the trouble), and the file from which torchrun prints the root cause."""

import json
import os
import sys
import time
import traceback

from . import memory, record

MESSAGE_BYTES = 1024
TRACEBACK_BYTES = 4096
TRACEBACK = "Traceback (most recent call last)"
# Lines of a traceback that begin at the margin and say nothing of what went wrong.
BETWEEN = (TRACEBACK, "The above exception was", "During handling of the above")


class LastWords:
    def __init__(self, probe):
        self._probe = probe
        self._told = None
        self._previous = None

    def install(self):
        self._previous = sys.excepthook
        sys.excepthook = self._excepthook

    def _excepthook(self, kind, value, trace):
        self._probe.call(self.tell, kind, value, trace)
        (self._previous or sys.__excepthook__)(kind, value, trace)

    def tell_what_was_missed(self):
        """At exit: a script or a library may have replaced sys.excepthook, but the interpreter notes what ended it."""
        value = getattr(sys, "last_value", None)
        if value is not None and not isinstance(value, SystemExit):
            self.tell(type(value), value, getattr(sys, "last_traceback", None))

    def tell(self, kind, value, trace):
        if value is self._told:
            return
        self._told = value
        try:
            message = str(value)
        except Exception:  # an exception class of the user's whose __str__ fails
            message = "(the exception cannot be printed)"
        text = "".join(traceback.format_exception(kind, value, trace))
        write_error_file(f"{kind.__name__}: {message}", text)
        self._probe.say_last("error", {**error_fields(kind, message, text), "memory": memory.evidence(self._probe.torch, value, message)})


def error_fields(kind, message, text):
    """Within the datagram's limit even where JSON has to escape every character."""
    escaped = sum(c in '"\\\n\t' for c in text[-TRACEBACK_BYTES:])
    return {
        "type": record.head(kind.__name__, 256),
        "message": record.head(gist(message), MESSAGE_BYTES),
        "traceback": record.tail(text, max(512, TRACEBACK_BYTES - escaped // 2)),
    }


def gist(message):
    """Exceptions of DCP, of DataLoader workers and of RPC carry whole tracebacks of others in their text: of each its last line."""
    if TRACEBACK not in message:
        return message
    lines = [line.strip() for line in message.splitlines() if line and not line[0].isspace()]
    return ": ".join(dict.fromkeys(line for line in lines if line and not line.startswith(BETWEEN)))


def write_error_file(message, text):
    """As torch's @record decorator writes it, unless it has done so already."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    try:
        with open(path, "x", encoding="utf-8") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
    except OSError:  # there already, or no place for it: torchrun then reports the exit code alone
        pass
