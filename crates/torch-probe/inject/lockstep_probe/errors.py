"""The error report of a failing rank: an `error` record (with the memory's state if memory was the problem), and the file from which
torchrun prints the root cause."""

import json
import os
import signal
import sys
import time
import traceback

from . import memory, record

MESSAGE_BYTES = 1024
TRACEBACK_BYTES = 4096
TRACEBACK = "Traceback (most recent call last)"
# Lines of a traceback that start at the margin and do not describe the error.
BETWEEN = (TRACEBACK, "The above exception was", "During handling of the above")


class ErrorReporter:
    def __init__(self, probe):
        self._probe = probe
        self._reported = None
        self._previous = None

    def install(self):
        self._previous = sys.excepthook
        sys.excepthook = self._excepthook

    def _excepthook(self, kind, value, trace):
        self._probe.call(self.report, kind, value, trace)
        (self._previous or sys.__excepthook__)(kind, value, trace)

    def report_unhandled(self):
        """Runs at exit: a script or a library may have replaced sys.excepthook, but the interpreter records what ended it."""
        value = getattr(sys, "last_value", None)
        if value is not None and not isinstance(value, SystemExit):
            self.report(type(value), value, getattr(sys, "last_traceback", None))

    def report(self, kind, value, trace):
        if value is self._reported:
            return
        self._reported = value
        try:
            message = str(value)
        except Exception:  # a user's exception class whose __str__ fails
            message = "(the exception cannot be printed)"
        text = "".join(traceback.format_exception(kind, value, trace))
        write_error_file(f"{kind.__name__}: {message}", text)
        self._probe.say_last("error", {**error_fields(kind, message, text), "memory": memory.evidence(self._probe.torch, value, message)})


def error_fields(kind, message, text):
    """Fits the fields into a datagram even if JSON has to escape every character."""
    escaped = sum(c in '"\\\n\t' for c in text[-TRACEBACK_BYTES:])
    return {
        "type": record.head(kind.__name__, 256),
        "message": record.head(shorten_message(message), MESSAGE_BYTES),
        "traceback": record.tail(text, max(512, TRACEBACK_BYTES - escaped // 2)),
    }


def shorten_message(message):
    """Exceptions of DCP, of DataLoader workers and of RPC contain whole tracebacks in their text. Returns only the last line of each."""
    if TRACEBACK not in message:
        return message
    lines = [line.strip() for line in message.splitlines() if line and not line[0].isspace()]
    return ": ".join(dict.fromkeys(line for line in lines if line and not line.startswith(BETWEEN)))


def is_of_signal_handler(error):
    """Returns True if a signal handler of the script raised the error. A handler runs wherever the main thread is, also in the probe."""
    try:
        codes = [code_of(signal.getsignal(number)) for number in signal.valid_signals()]
        return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__) for code in codes)
    except Exception:  # a handler of a class whose attributes cannot be read
        return False


def code_of(handler):
    handler = getattr(handler, "func", handler)  # functools.partial
    if callable(handler) and not hasattr(handler, "__code__") and not hasattr(handler, "__func__"):
        handler = type(handler).__call__  # of an object that can be called
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


def write_error_file(message, text):
    """Writes the file like torch's @record decorator, unless it already has."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    try:
        with open(path, "x", encoding="utf-8") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
    except OSError:  # it exists, or there is no space: torchrun then reports only the exit code
        pass
