"""`process_group_timeout_s`: how long a collective may take, for every process group the script makes; no environment variable does this.

Replaced is the `timeout` of init_process_group, new_group and split_group. While a run goes on, `live` sets it for the groups there are: it
is no collective, each rank does it for itself, and it counts for what is begun afterwards. Groups that are made later get it too. What the
script itself had is noted for each group, so that it can be given back. A backend that ignores it is found by reading it back.
"""

import datetime
import functools
import inspect
import sys

from .knob import Knob, Refused, positive

MODULE = "torch.distributed.distributed_c10d"
MAKERS = ("init_process_group", "new_group", "split_group")


class GroupTimeout(Knob):
    name = "process_group_timeout_s"
    waits_for = "the script has made no process group"

    def __init__(self, panel, value=None):
        super().__init__(panel, value)
        self._timeout = None if value is None else seconds(value)
        self._own = {}  # name of a group -> what the script gave it; None for torch's default
        self._watched = False  # whether the makers of groups are replaced

    def patches(self):
        return {MODULE: self._watch}

    def _watch(self, module):
        self._watched = True
        for name in MAKERS:
            if hasattr(module, name):
                setattr(module, name, self._with_timeout(getattr(module, name), name))

    def _with_timeout(self, original, name):
        signature = inspect.signature(original)

        @functools.wraps(original)
        def make(*args, **kwargs):
            changed = self.guard(self._changed, signature, args, kwargs) if self._timeout is not None else None
            if changed is None:
                return original(*args, **kwargs)
            arguments, before = changed
            known = self.guard(self._names) or set()
            result = original(*arguments.args, **arguments.kwargs)
            self.guard(self._say, name, before, known)
            return result

        return make

    def _changed(self, signature, args, kwargs):
        bound = signature.bind(*args, **kwargs)
        before = bound.arguments.get("timeout")
        bound.arguments["timeout"] = self._timeout
        return bound, before

    def _say(self, name, before, known):
        self._own.update(dict.fromkeys(self._names() - known, before))
        if name == "init_process_group" or self.panel.state(self.name) is None:
            was = "torch's default" if before is None else f"{before.total_seconds():g} s"
            self.applied(f"collectives of every process group may take {self._timeout.total_seconds():g} s; the script had {was}")

    def _names(self):
        return set(sys.modules[MODULE]._world.pg_names.values())

    # === while the run goes on ===

    def live(self, value):
        """Another value, or None for what the script gave each group itself."""
        timeout = None if value is None else seconds(value)
        module = sys.modules.get(MODULE)
        if module is None or not module.is_initialized():
            raise Refused("the script has made no process group")
        if not self._watched:
            for maker in (module, self.panel.torch.distributed):  # which has names of its own for them by now
                self._watch(maker)
        groups = list(module._world.pg_map)
        before, self._timeout = self._timeout, timeout
        self._set(module, groups)
        deaf = [group for group in groups if not is_about(current(self.panel.torch, group), self._wanted(module, group))]
        if deaf:
            self._timeout = before
            self._set(module, groups)
            backends = ", ".join(sorted({module.get_backend(group) for group in deaf}))
            raise Refused(f"{len(deaf)} of {len(groups)} process groups ({backends}) do not take another time-out while they are in use")
        if timeout is None:
            own = ", ".join(sorted({f"{self._wanted(module, group).total_seconds():g} s" for group in groups}))
            self.applied(f"collectives begun from now on may take what the script gave them ({own}), in {len(groups)} process groups")
        else:
            self.applied(f"collectives begun from now on may take {timeout.total_seconds():g} s, in {len(groups)} process groups")

    def _set(self, module, groups):
        change = getattr(module, "set_timeout", None) or module._set_pg_timeout
        for group in groups:
            change(self._wanted(module, group), group)

    def _wanted(self, module, group):
        name = module._world.pg_names[group]
        if name not in self._own:
            self._own[name] = current(self.panel.torch, group)
        if self._timeout is not None:
            return self._timeout
        own = self._own[name]
        return module._get_default_timeout(module.Backend(module.get_backend(group))) if own is None else own


def seconds(value):
    return datetime.timedelta(seconds=positive(GroupTimeout.name, value))


def is_about(found, wanted):
    """Whether a time-out was taken over: backends keep whole milliseconds."""
    return found is not None and abs(found - wanted) < datetime.timedelta(milliseconds=1)


def current(torch, group):
    """What a group's collectives may take now; None where its backend does not say."""
    for device in group._device_types:
        timeout = getattr(getattr(group._get_backend(device), "options", None), "_timeout", None)
        if timeout is not None:
            return timeout
    return None
