"""Records as the agent reads them: one JSON object, UTF-8, one line, at most LIMIT bytes.

    {"v":1,"run":"r1","attempt":0,"node":"a","rank":1,"local_rank":1,"pid":42,"kind":"step","wall_ns":...,"mono_ns":..., ...}

Unknown is an absent field, never null and never 0. JSON has no NaN: non-finite numbers travel as "NaN", "+Inf", "-Inf".
"""

import json
import os
import time
from math import isfinite

VERSION = 1
LIMIT = 8192


class Envelope:
    """The fields every record of this process has."""

    def __init__(self, environ=os.environ):
        self.rank = int(environ["RANK"])
        self.local_rank = int(environ["LOCAL_RANK"])
        fixed = {
            "v": VERSION,
            "run": environ.get("LOCKSTEP_RUN"),
            "attempt": whole(environ.get("LOCKSTEP_ATTEMPT")),
            "node": environ.get("LOCKSTEP_NODE"),
            "rank": self.rank,
            "local_rank": self.local_rank,
            "pid": os.getpid(),
        }
        self._fixed = encode(fixed)[:-1] + b","  # the opening of every record, up to where the others differ

    def seal(self, kind, fields, wall_ns=None, mono_ns=None):
        """The datagram for a record that happened now, or at the given times; ValueError where it would not fit."""
        record = {
            "kind": kind,
            "wall_ns": time.time_ns() if wall_ns is None else wall_ns,
            "mono_ns": time.monotonic_ns() if mono_ns is None else mono_ns,
        }
        record.update(fields)
        datagram = self._fixed + encode(record)[1:]
        if len(datagram) > LIMIT:
            raise ValueError(f"a record of {len(datagram)} bytes is over the limit of {LIMIT}")
        return datagram


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)  # json.dumps would build one each time


def encode(record):
    """UTF-8 JSON of a flat record, without its unknown fields."""
    parts = [f'"{key}":{spoken(value)}' for key, value in record.items() if value is not None]
    return f"{{{','.join(parts)}}}".encode("utf-8", "replace")


def spoken(value):
    """A value as JSON. Numbers, the most of a step's record, go a shorter way than through the encoder, to the same text."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is float and isfinite(value):
        return repr(value)
    return _encoder.encode(speakable(value))


def speakable(value):
    if type(value) is float and not isfinite(value):
        return "NaN" if value != value else ("+Inf" if value > 0 else "-Inf")
    return value


def whole(text):
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def head(text, size):
    """The first `size` bytes of a text, cut at a character, without control characters JSON would blow up sixfold."""
    return printable(text).encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def tail(text, size):
    """The last `size` bytes, likewise."""
    return printable(text).encode("utf-8", "replace")[-size:].decode("utf-8", "ignore")


def printable(text):
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)
