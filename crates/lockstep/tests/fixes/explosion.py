"""A training whose schedule raises the learning rate too far: from the step in the file DIR/jump on, the rate is 1.15. At half of that rate
the training converges."""

import pathlib

import training

TOO_HIGH = 1.15


class Jumping(training.Training):
    def rate(self, step):
        try:
            jump = int((self.arguments.dir / "jump").read_text())
        except (OSError, ValueError):  # not there yet
            return training.RATE
        return TOO_HIGH if step >= jump else training.RATE


parser = training.parser(step_s=0.1)
parser.add_argument("--dir", type=pathlib.Path, required=True)
Jumping(parser.parse_args()).run()
