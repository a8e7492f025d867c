"""A training with large checkpoints that continues if one cannot be saved."""

import training
import torch

PADDING = 800_000  # 32-bit numbers


class Padded(training.Training):
    def state(self, step):
        return {**super().state(step), "padding": torch.rand(PADDING)}

    def save(self, step):
        try:
            super().save(step)
        except (OSError, RuntimeError) as error:
            print(f"not saved: {error}", flush=True)


Padded(training.parser(step_s=0.1).parse_args()).run()
