"""`process_group_timeout_s`: how long a collective may take, for every process group the script makes; no environment variable does this.

Replaced is the `timeout` of init_process_group, new_group and split_group. While a run goes on, `live` sets it for the groups there are: it
is no collective, each rank does it for itself, and it counts for what is begun afterwards.
"""

import datetime
import functools
import inspect
import sys

from .knob import Knob, Refused, positive

MAKERS = ("init_process_group", "new_group", "split_group")


class GroupTimeout(Knob):
    name = "process_group_timeout_s"
    waits_for = "the script has made no process group"

    def __init__(self, panel, value):
        super().__init__(panel, value)
        self._timeout = datetime.timedelta(seconds=positive(self.name, value))

    def patches(self):
        return {"torch.distributed.distributed_c10d": self._watch}

    def _watch(self, module):
        for name in MAKERS:
            if hasattr(module, name):
                setattr(module, name, self._with_timeout(getattr(module, name), name))

    def _with_timeout(self, original, name):
        signature = inspect.signature(original)

        @functools.wraps(original)
        def make(*args, **kwargs):
            changed = self.guard(self._changed, signature, args, kwargs)
            if changed is None:
                return original(*args, **kwargs)
            arguments, before = changed
            result = original(*arguments.args, **arguments.kwargs)
            self.guard(self._say, name, before)
            return result

        return make

    def _changed(self, signature, args, kwargs):
        bound = signature.bind(*args, **kwargs)
        before = bound.arguments.get("timeout")
        bound.arguments["timeout"] = self._timeout
        return bound, before

    def _say(self, name, before):
        if name == "init_process_group" or self.panel.state(self.name) is None:
            was = "torch's default" if before is None else f"{before.total_seconds():g} s"
            self.applied(f"collectives of every process group may take {self._timeout.total_seconds():g} s; the script had {was}")

    def live(self, value):
        """Another value while the run goes on."""
        self.value = value
        self._timeout = datetime.timedelta(seconds=positive(self.name, value))
        module = sys.modules.get("torch.distributed.distributed_c10d")
        if module is None or not module.is_initialized():
            raise Refused("the script has made no process group")
        change = getattr(module, "set_timeout", None) or module._set_pg_timeout
        groups = list(module._world.pg_map)
        for group in groups:
            change(self._timeout, group)
        self.applied(f"collectives begun from now on may take {self._timeout.total_seconds():g} s, in {len(groups)} process groups")
