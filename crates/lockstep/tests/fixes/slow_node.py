"""A training whose rank is slow on the node that `--slow-node` names."""

import os

import training

EXTRA_S = 0.2


class Uneven(training.Training):
    def step_s(self):
        is_slow = os.environ["LOCKSTEP_NODE"] == self.arguments.slow_node
        return self.arguments.step_s + (EXTRA_S if is_slow else 0.0)


parser = training.parser(step_s=0.1)
parser.add_argument("--slow-node", required=True)
Uneven(parser.parse_args()).run()
