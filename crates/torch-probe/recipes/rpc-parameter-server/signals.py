"""Reports to the probe, if there is one: the version of the weights, and what only this script can measure.

Without Lockstep, or if its probe is turned off, nothing happens.
"""

try:
    import lockstep_probe
except ImportError:
    lockstep_probe = None


def step(number):
    """The loop of a worker steps no optimizer, so the end of a step is not visible otherwise."""
    if lockstep_probe is not None:
        lockstep_probe.step(number)


def report(**values):
    if lockstep_probe is not None:
        lockstep_probe.report(**values)
