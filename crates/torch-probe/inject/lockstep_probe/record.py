"""Records as the agent reads them: one JSON object, UTF-8, one line, at most LIMIT bytes.

    {"v":1,"run":"r1","attempt":0,"node":"a","rank":1,"local_rank":1,"pid":42,"kind":"step","wall_ns":...,"mono_ns":..., ...}

A field with an unknown value is absent, never null and never 0. JSON has no NaN: non-finite numbers are written as "NaN", "+Inf", "-Inf".
"""

import json
import os
import time
from math import isfinite

VERSION = 1
LIMIT = 8192


class Envelope:
    """The fields that every record of this process has."""

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
        self._fixed = encode(fixed)[:-1] + b","  # the start of every record, up to the first field that differs

    def seal(self, kind, fields, wall_ns=None, mono_ns=None):
        """Returns the datagram for a record of now, or of the given times. Raises ValueError if it is too long."""
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


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)  # json.dumps would create one each time


def encode(record):
    """Returns a flat record as UTF-8 JSON, without its unknown fields."""
    parts = [f'"{key}":{to_json(value)}' for key, value in record.items() if value is not None]
    return f"{{{','.join(parts)}}}".encode("utf-8", "replace")


def to_json(value):
    """Returns a value as JSON. Numbers, the largest part of a step's record, are formatted without the encoder, with the same result."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is float and isfinite(value):
        return repr(value)
    return _encoder.encode(json_value(value))


def json_value(value):
    if type(value) is float and not isfinite(value):
        return "NaN" if value != value else ("+Inf" if value > 0 else "-Inf")
    return value


def whole(text):
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def head(text, size):
    """Returns the first `size` bytes of a text, cut between characters, without control characters, which JSON would make six times as
    long."""
    return printable(text).encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def tail(text, size):
    """Returns the last `size` bytes in the same way."""
    return printable(text).encode("utf-8", "replace")[-size:].decode("utf-8", "ignore")


def printable(text):
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)
