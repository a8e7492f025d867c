"""The results of a step.

A row says whether one value of Lockstep agrees with its reference. A fact is a raw value, only for the JSON file. Both are written to a
file immediately, one JSON object per line, so that an interrupted step keeps its results.
"""

import json
import math
import time

AGREES = "agrees"
DIFFERS = "differs"
NOT_AVAILABLE = "not available"
FAILED = "failed"
# Two programs never read at the same moment: when a value jumps, a single sample may be outside.
SAMPLES_INSIDE_MIN = 0.95
VERDICTS = (AGREES, DIFFERS, NOT_AVAILABLE, FAILED)


class Sheet:
    """Where a step writes its rows and facts."""

    def __init__(self, path, part, step):
        self._path, self._part, self._step = path, part, step

    def compare(self, what, found, expected, *, relative=0.0, absolute=0.0, unit="", reference=""):
        """A row: `found` agrees when it is within the tolerance of `expected`."""
        if found is None or expected is None:
            missing = "Lockstep has no value" if found is None else f"{reference or 'the reference'} has no value"
            return self.not_available(what, missing)
        difference = abs(found - expected)
        agrees = math.isfinite(difference) and difference <= absolute + relative * abs(expected)
        by = "" if agrees else by_how_much(found, expected)
        return self._row(what, AGREES if agrees else DIFFERS, number(found, unit), number(expected, unit), by, reference)

    def equal(self, what, found, expected, reference=""):
        """A row: `found` agrees when it equals `expected`."""
        if found is None or expected is None:
            return self.not_available(what, "Lockstep has no value" if found is None else f"{reference or 'the reference'} has no value")
        return self._row(what, AGREES if found == expected else DIFFERS, str(found), str(expected), "", reference)

    def between(self, what, found, low, high, unit="", note=""):
        """A row: `found` agrees when it is from `low` to `high`."""
        if found is None:
            return self.not_available(what, "Lockstep has no value")
        agrees = low <= found <= high
        expected = f"at most {number(high, unit)}" if low == -math.inf else f"at least {number(low, unit)}" if high == math.inf else f"{number(low, unit)} to {number(high, unit)}"
        by = "" if agrees else by_how_much(found, low if found < low else high)
        return self._row(what, AGREES if agrees else DIFFERS, number(found, unit), expected, by, note)

    def samples(self, what, inside, total, found, expected, unit, reference):
        """Adds a row for many samples: they agree if at least `SAMPLES_INSIDE_MIN` of them do. `found` and `expected` belong to the worst
        sample."""
        agrees = total > 0 and inside >= SAMPLES_INSIDE_MIN * total
        by = "" if agrees else f"{total - inside} of {total} samples, at worst {by_how_much(found, expected)}"
        return self._row(what, AGREES if agrees else DIFFERS, number(found, unit), number(expected, unit), by, f"{reference}, {total} samples")

    def holds(self, what, agrees, found, expected):
        """A row of something that is true or not, in words."""
        return self._row(what, AGREES if agrees else DIFFERS, str(found), str(expected), "", "")

    def not_available(self, what, why):
        """A row of something that cannot be checked on this machine."""
        return self._row(what, NOT_AVAILABLE, "", "", "", why)

    def failed(self, what, why):
        """Adds a row for a check without a result."""
        return self._row(what, FAILED, "", "", "", why)

    def fact(self, name, value):
        """A raw value for the JSON file."""
        self._write({"fact": name, "step": self._step, "part": self._part, "value": value})

    def _row(self, what, verdict, found, expected, by, note):
        row = {"part": self._part, "step": self._step, "what": what, "verdict": verdict, "found": found, "expected": expected, "by": by, "note": note}
        self._write(row)
        details = f"{found} (expected {expected}{', ' + by if by else ''})" if found or expected else note
        print(f"  {verdict:13} {what}: {details}", flush=True)
        return verdict == AGREES

    def _write(self, record):
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "at": round(time.time(), 3)}, default=str) + "\n")


def read(path):
    """Reads rows and facts of a step, also if it was interrupted within a line."""
    rows, facts = [], []
    try:
        lines = open(path, encoding="utf-8").read().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        (facts if "fact" in record else rows).append(record)
    return rows, facts


def by_how_much(found, expected):
    """`+3.1 %`, or the difference where the expected value is zero."""
    if not math.isfinite(found):
        return str(found)
    return f"{100 * (found - expected) / abs(expected):+.1f} %" if expected else f"{found - expected:+.4g}"


def number(value, unit=""):
    """A short form: bytes in GiB, large numbers with prefixes."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return str(value)
    if unit == "B":
        for factor, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if abs(value) >= factor:
                return f"{value / factor:.2f} {name}"
    elif unit in ("B/s", "FLOP/s", "Hz"):
        for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return f"{value / factor:.2f} {prefix}{unit}"
    elif unit == "s" and 0 < abs(value) < 1:
        return f"{1e3 * value:.3f} ms"
    elif unit == "%":
        return f"{100 * value:.1f} %"
    text = f"{value:.6g}"
    return f"{text} {unit}" if unit else text
