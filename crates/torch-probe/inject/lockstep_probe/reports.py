"""Values that only the script can measure and that it reports by name. They are part of the record of the current step.

    lockstep_probe.report(train_rpc_seconds=0.0021)       any number of calls, from any thread
    lockstep_probe.step(number)                            the end of a step, if the script uses no optimizer of torch

The table says how the values of a step are combined: many calls become one or two numbers. Other names are noted and not sent.
"""

import threading

VALUES_MAX = 512  # per name and step; of more reports, these are used


def median(values):
    return sorted(values)[len(values) // 2]


def mean(values):
    return sum(values) / len(values)


# name -> (field of the step record -> how the values of the step are combined)
KNOWN = {
    "train_rpc_seconds": {"train_rpc_seconds": median, "train_rpc_seconds_max": max},
    "train_rpc_buffer_depth": {"train_rpc_buffer_depth": max},
    "train_gradient_staleness_steps": {"train_gradient_staleness_steps": mean},
    "train_pipeline_bubble_ratio": {"train_pipeline_bubble_ratio": mean},
}


class Reports:
    def __init__(self, note):
        self._note = note
        self._values = {}
        self._lock = threading.RLock()  # held only for an append, which a signal handler that reports may interrupt

    def add(self, reported):
        for name, value in reported.items():
            if name not in KNOWN:
                self._note(f"report() knows no {name[:64]}: it knows {', '.join(KNOWN)}")
                continue
            if not isinstance(value, (int, float)):  # a tensor: reading its number would wait for the device
                self._note(f"report() takes numbers, and {name} is a {type(value).__name__}")
                continue
            with self._lock:
                values = self._values.setdefault(name, [])
                if len(values) < VALUES_MAX:
                    values.append(value)

    def take(self):
        """Returns the fields for the step that ends."""
        with self._lock:
            taken, self._values = self._values, {}
        return {field: made(values) for name, values in taken.items() for field, made in KNOWN[name].items()}
