"""Which optimizer's steps are the run's steps, where a script has several.

The first one to step leads: a GAN's discriminator, or the first parameter under optimizer-in-backward. The others' time is counted
into the step. A leader that is gone, or has not stepped for PATIENCE steps of others, hands over.
"""

import weakref

PATIENCE = 100


class Leader:
    def __init__(self):
        self._leader = lambda: None
        self._since = 0

    def saw(self, optimizer):
        """An optimizer begins a step."""
        if self._leader() is optimizer:
            self._since = 0
            return
        self._since += 1
        if self._leader() is None or self._since > PATIENCE:
            self._leader = weakref.ref(optimizer)
            self._since = 0

    def is_leading(self, optimizer):
        return self._leader() is optimizer
