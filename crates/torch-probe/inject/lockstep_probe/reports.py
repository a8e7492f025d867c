"""What only the script can measure, said by the script: a few named values, which go into the record of the step they fall into.

    lockstep_probe.report(train_rpc_seconds=0.0021)       as often as it likes, from any thread
    lockstep_probe.step(number)                            the end of a step, where the script steps no optimizer of torch's

A value stands for the step as the table says: many calls a step become one or two numbers. Names that are not in it are not sent, and noted.
"""

import threading

VALUES_MAX = 512  # of a name in a step; a script that reports more often is judged by these


def median(values):
    return sorted(values)[len(values) // 2]


def mean(values):
    return sum(values) / len(values)


# name -> (field of the step record -> what it is of the step's values)
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
        self._lock = threading.Lock()  # held for the few instructions of an append

    def add(self, reported):
        for name, value in reported.items():
            if name not in KNOWN:
                self._note(f"report() knows no {name[:64]}: it knows {', '.join(KNOWN)}")
                continue
            if not isinstance(value, (int, float)):  # a tensor among them: its number would have to be waited for
                self._note(f"report() takes numbers, and {name} is a {type(value).__name__}")
                continue
            with self._lock:
                values = self._values.setdefault(name, [])
                if len(values) < VALUES_MAX:
                    values.append(value)

    def take(self):
        """The fields for the step that ends."""
        with self._lock:
            taken, self._values = self._values, {}
        return {field: made(values) for name, values in taken.items() for field, made in KNOWN[name].items()}
