"""A training that waits for data: loading a batch takes as long as computing a step, and without worker processes both happen one after the
other."""

import training


class Stalled(training.Training):
    load_s = 0.2


Stalled(training.parser(step_s=0.2).parse_args()).run()
