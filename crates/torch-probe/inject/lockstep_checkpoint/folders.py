"""Step folders: their names, whether one is complete, and which one training continues from.

    /ckpt/step-000100/      .metadata (DCP's, last of all), lockstep.json, contents.json, __RANK_N.distcp
    /ckpt/step-000120.2/    a second save of step 120: the folder of an interrupted save is never written again
    /ckpt/latest            one line: the name of the full checkpoint that was completed last
"""

import json
import os
import re

from . import durable

NAME = re.compile(r"step-(\d+)(?:\.\d+)?")
METADATA = ".metadata"
SIDECAR = "lockstep.json"
CONTENTS = "contents.json"
LATEST = "latest"
TRIES_MAX = 1_000  # per step; more failed tries have a systematic cause


def name(step, attempt=1):
    return f"step-{step:06d}" if attempt == 1 else f"step-{step:06d}.{attempt}"


def create(parent, step):
    """Creates a folder for the step that no save has used before. Returns its path."""
    os.makedirs(parent, exist_ok=True)
    for attempt in range(1, TRIES_MAX):
        path = os.path.join(parent, name(step, attempt))
        try:
            os.mkdir(path)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{parent} holds {TRIES_MAX} folders for step {step}; remove those that are no use")


def sidecar(path):
    """Returns the content of `lockstep.json`, or None if it is missing or unreadable."""
    try:
        with open(os.path.join(path, SIDECAR), encoding="utf-8") as file:
            said = json.load(file)
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) and isinstance(said.get("files"), dict) else None


def problem(path):
    """Returns why the checkpoint in a folder cannot be used; None if everything that was written is there."""
    try:
        if os.path.getsize(os.path.join(path, METADATA)) == 0:
            return f"{METADATA} is empty"
    except OSError:
        return f"there is no {METADATA}: the save did not finish"
    said = sidecar(path)
    if said is None:
        return f"{SIDECAR} cannot be read" if os.path.exists(os.path.join(path, SIDECAR)) else None
    for file, size in said["files"].items():
        try:
            there = os.path.getsize(os.path.join(path, file))
        except OSError:
            return f"{file} is missing"
        if there != size:
            return f"{file} has {there} bytes instead of {size}"
    return None


def complete(path):
    return problem(path) is None


def newest(parent, full=True):
    """Returns the path of the complete checkpoint that was finished last, or None. `full`: one from which training can continue exactly.

    The order is that of completion, not of steps: after a return to step 100, training continues from there and not from the earlier step
    200. The order is read from the folders and not from `latest`, which is outdated if a process dies between the two writes.
    """
    found = [path for path in all_in(parent) if complete(path) and not (full and model_only(path))]
    return max(found, key=lambda path: (finished_ns(path), step_of(path)), default=None)


def all_in(parent):
    try:
        return [os.path.join(parent, entry) for entry in os.listdir(parent) if NAME.fullmatch(entry)]
    except FileNotFoundError:
        return []


def model_only(path):
    """Returns True if training cannot continue from it exactly, because it lacks the optimizer and other state."""
    return (sidecar(path) or {}).get("content") == "model"


def step_of(path):
    found = NAME.fullmatch(os.path.basename(os.path.normpath(path)))
    return int(found.group(1)) if found else -1


def finished_ns(path):
    return os.stat(os.path.join(path, METADATA)).st_mtime_ns


def point_latest(path):
    """Updates `latest`. Call it only for a complete checkpoint."""
    durable.write(os.path.join(os.path.dirname(path), LATEST), os.path.basename(path) + "\n")
