"""What all knobs have in common: a name, a value that means something, an answer, and a wall between their faults and the script."""

from ..record import head


class Refused(ValueError):
    """Why a knob cannot be turned, as a sentence for a person."""


class Knob:
    name = ""
    waits_for = ""  # what has not come when the knob could not be applied, as the end of a sentence

    def __init__(self, panel, value):
        """Refused for a value that means nothing."""
        self.panel = panel
        self.value = value

    def patches(self):
        """Module name -> what to do with it once it has been imported."""
        return {}

    def settle(self):
        if self.panel.state(self.name) is None:
            self.failed(f"nothing was changed: {self.waits_for}")

    def applied(self, detail):
        self.panel.answer(self.name, self.value, "applied", detail)

    def failed(self, detail):
        self.panel.answer(self.name, self.value, "failed", detail)

    def guard(self, function, *args):
        """Runs the knob's code for user code; what goes wrong is its answer, and None comes back."""
        if not self.panel.on:
            return None
        try:
            return function(*args)
        except Refused as error:
            self.failed(f"nothing was changed: {error}")
        except Exception as error:
            self.failed(f"nothing was changed: {type(error).__name__}: {head(str(error), 400)}")
        return None


def positive(name, text, kind=float, least=None):
    """The number a value is, if it is a finite one above zero (or at least `least`)."""
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not (number > 0 if least is None else number >= least) or number == float("inf"):
        whole = "a whole number" if kind is int else "a number"
        raise Refused(f"{name} must be {whole} {'above 0' if least is None else f'of at least {least}'}, and '{text}' is not")
    return number
