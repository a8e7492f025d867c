"""What can go wrong, by group. A fault is a function of the training. It is called on the ranks that go wrong, when their step has come.

MAGNITUDE is the argument of the script; EXTRA is MAGNITUDE times the seconds of a step.
"""

from . import checkpoints, data, failures, hangs, learning, stragglers, throughput
from .hangs import FOREVER_S
from .throughput import delayed_all_reduce

FROM_OUTSIDE = ("stopped", "busy-neighbour", "full-disk", "killed", "agent-killed", "node-lost")  # the test causes these
IN_REPORTS = ("skipped-collective", "other-order", "other-operation")  # Training.report does these

STRIKES = {
    **dict.fromkeys(FROM_OUTSIDE + IN_REPORTS, lambda training: None),
    **hangs.STRIKES,
    **stragglers.STRIKES,
    **throughput.STRIKES,
    **learning.STRIKES,
    **data.STRIKES,
    **checkpoints.STRIKES,
    **failures.STRIKES,
}
