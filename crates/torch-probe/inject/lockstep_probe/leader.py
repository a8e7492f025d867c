"""Decides which optimizer's steps are the run's steps if a script has several optimizers.

The first one that steps is the leader: a GAN's discriminator, or the first parameter with optimizer-in-backward. The time of the others
counts as part of the step. If the leader is gone, or has not stepped for IDLE_STEPS_MAX steps of others, another optimizer becomes the leader.
"""

import weakref

IDLE_STEPS_MAX = 100


class Leader:
    def __init__(self):
        self._leader = lambda: None
        self._since = 0

    def saw(self, optimizer):
        """Records that an optimizer starts a step."""
        if self._leader() is optimizer:
            self._since = 0
            return
        self._since += 1
        if self._leader() is None or self._since > IDLE_STEPS_MAX:
            self._leader = weakref.ref(optimizer)
            self._since = 0

    def is_leading(self, optimizer):
        return self._leader() is optimizer
