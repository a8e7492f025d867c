"""Collects the errors in a client's readings."""

# The result of a failed call. No client returns this value.
FAILED = object()


class Checks:
    """Collects all errors instead of stopping at the first."""

    def __init__(self, spec):
        self.spec = spec
        self.wrong = []
        self.done = 0

    def attempt(self, what, call):
        """Returns the value of `call`. On an error, records it and returns FAILED."""
        try:
            return call()
        except Exception as error:  # every error of a client counts
            self.wrong.append(f"{what}: {type(error).__name__}: {error}")
            return FAILED

    def read(self, what, call):
        """Like `attempt`, for values that later checks use: returns None on an error."""
        value = self.attempt(what, call)
        return None if value is FAILED else value

    def within(self, what, call, low, high):
        value = self.attempt(what, call)
        self.done += 1
        if value is not FAILED and not (isinstance(value, (int, float)) and low <= value <= high):
            self.wrong.append(f"{what}: {value!r}, expected {low} to {high}")

    def equal(self, what, call, expected):
        value = self.attempt(what, call)
        self.done += 1
        if value is not FAILED and value != expected:
            self.wrong.append(f"{what}: {value!r}, expected {expected!r}")

    def refused(self, what, call, error):
        """`call` must raise `error`."""
        self.done += 1
        try:
            value = call()
        except error:
            return
        except Exception as other:
            self.wrong.append(f"{what}: {type(other).__name__}: {other}, expected {error.__name__}")
            return
        self.wrong.append(f"{what}: {value!r}, expected {error.__name__}")
