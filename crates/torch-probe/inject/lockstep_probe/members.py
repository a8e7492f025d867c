"""Writes which ranks each process group has into the file `rank-RANK.groups` in the attempt's folder, for readers of the Flight Recorder.

Gloo's recorder does not name the members of its groups, and a rank that hangs cannot answer. So the members are written when a group is
created: one JSON object, name of the group -> ranks as `0-3,8`.
"""

import contextlib
import functools
import json
import os

GROUPS_MAX = 256
MAKERS = ("new_group", "split_group")


def watch(probe, module):
    for name in MAKERS:
        if hasattr(module, name):
            setattr(module, name, noted(probe, module, getattr(module, name)))


def noted(probe, module, original):
    @functools.wraps(original)
    def make(*args, **kwargs):
        group = original(*args, **kwargs)
        probe.call(probe.members.note, module, group)
        return group

    return make


class Members:
    def __init__(self, environ):
        folder = os.path.dirname(os.path.abspath(environ["LOCKSTEP_PROBE_SOCKET"]))
        self._path = os.path.join(folder, f"rank-{environ['RANK']}.groups")
        self._groups = {}

    def note(self, module, group):
        """`group` as created; a rank that is not a member got another value."""
        name = getattr(group, "group_name", None)
        if not name or len(self._groups) >= GROUPS_MAX:
            return
        self._groups[str(name)] = ranges(module.get_process_group_ranks(group))
        new = self._path + ".new"
        with contextlib.suppress(OSError):  # a full disk: then the digest does not name the members
            with open(new, "w", encoding="utf-8") as file:
                json.dump(self._groups, file)
            os.replace(new, self._path)


def ranges(ranks):
    """Returns `0-3,8` for [0, 1, 2, 3, 8]."""
    found = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
