"""What the probe is told, where there is one: which update the weights are at, and what only this script can measure.

Without Lockstep, or with its probe turned off, nothing happens.
"""

try:
    import lockstep_probe
except ImportError:
    lockstep_probe = None


def step(number):
    """The loop of a worker steps no optimizer, so nobody could see where a step ends."""
    if lockstep_probe is not None:
        lockstep_probe.step(number)


def report(**values):
    if lockstep_probe is not None:
        lockstep_probe.report(**values)
