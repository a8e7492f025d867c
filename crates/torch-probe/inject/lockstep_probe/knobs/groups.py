"""`process_group_timeout_s`: the timeout of a collective, for every process group that the script creates; no environment variable does
this.

The knob replaces the `timeout` of init_process_group, new_group and split_group. During a run, `live` sets it for the existing groups. This
is no collective: each rank does it for itself, and it applies to collectives that start afterwards. Groups that are created later get it
too. The script's own value is stored for each group, so that it can be restored. A backend that ignores the value is found by reading it
back.
"""

import datetime
import functools
import inspect
import sys

from .knob import Knob, KnobError, positive

MODULE = "torch.distributed.distributed_c10d"
MAKERS = ("init_process_group", "new_group", "split_group")


class GroupTimeout(Knob):
    name = "process_group_timeout_s"
    waits_for = "the script has made no process group"

    def __init__(self, panel, value=None):
        super().__init__(panel, value)
        self._timeout = None if value is None else seconds(value)
        self._own = {}  # name of a group -> its timeout in the script; None for torch's default
        self._watched = False  # whether the functions that create groups are replaced

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

    # === during the run ===

    def live(self, value):
        """Sets another value, or None for the script's own value of each group."""
        timeout = None if value is None else seconds(value)
        module = sys.modules.get(MODULE)
        if module is None or not module.is_initialized():
            raise KnobError("the script has made no process group")
        if not self._watched:
            for maker in (module, self.panel.torch.distributed):  # which has imported them under its own names by now
                self._watch(maker)
        groups = list(module._world.pg_map)
        before, self._timeout = self._timeout, timeout
        self._set(module, groups)
        deaf = [group for group in groups if not is_about(current(self.panel.torch, group), self._wanted(module, group))]
        if deaf:
            self._timeout = before
            self._set(module, groups)
            backends = ", ".join(sorted({module.get_backend(group) for group in deaf}))
            raise KnobError(f"{len(deaf)} of {len(groups)} process groups ({backends}) do not take another time-out while they are in use")
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
    """Returns True if a timeout was applied: backends store whole milliseconds."""
    return found is not None and abs(found - wanted) < datetime.timedelta(milliseconds=1)


def current(torch, group):
    """Returns the current timeout of a group's collectives; None if its backend does not report it."""
    for device in group._device_types:
        timeout = getattr(getattr(group._get_backend(device), "options", None), "_timeout", None)
        if timeout is not None:
            return timeout
    return None
