"""The common part of all knobs: a name, a valid value, an answer, and a guard that keeps their errors away from the script."""

from ..errors import is_of_signal_handler
from ..record import head


class KnobError(ValueError):
    """Why a knob cannot be applied, as a sentence for users."""


class Knob:
    name = ""
    waits_for = ""  # what was missing when the knob could not be applied, as the end of a sentence

    def __init__(self, panel, value):
        """Raises KnobError for an invalid value."""
        self.panel = panel
        self.value = value

    def patches(self):
        """Returns module name -> what to do with it after its import."""
        return {}

    def settle(self):
        if self.panel.state(self.name) is None:
            self.failed(f"nothing was changed: {self.waits_for}")

    def applied(self, detail):
        self.panel.answer(self.name, self.value, "applied", detail)

    def failed(self, detail):
        self.panel.answer(self.name, self.value, "failed", detail)

    def guard(self, function, *args):
        """Runs the knob's code during user code. An error becomes the knob's answer, and None is returned."""
        if not self.panel.on:
            return None
        try:
            return function(*args)
        except KnobError as error:
            self.failed(f"nothing was changed: {error}")
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            self.failed(f"nothing was changed: {type(error).__name__}: {head(str(error), 400)}")
        return None


def positive(name, text, kind=float, least=None):
    """Returns the value as a number if it is finite and above zero (or at least `least`)."""
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not (number > 0 if least is None else number >= least) or number == float("inf"):
        whole = "a whole number" if kind is int else "a number"
        raise KnobError(f"{name} must be {whole} {'above 0' if least is None else f'of at least {least}'}, and '{text}' is not")
    return number
