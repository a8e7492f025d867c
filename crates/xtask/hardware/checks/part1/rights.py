"""Checks which of the agent's values need root: runs `lockstep agent --once` as root and as another user."""

import os
import shutil
import subprocess

NOBODY = 65534
FILES = ("lockstep", "libsim_nvml.so")


def run(check):
    if os.geteuid() != 0:
        check.sheet.not_available("readings without root", "./confirm was not started as root, so there is nothing to compare with")
        return
    binary = readable_copy(check)
    arguments = ["agent", "--once", *(["--simulate", check.settings.simulate] if check.settings.simulate else [])]
    as_root, root_said = families([binary, *arguments], 0)
    as_nobody, nobody_said = families([binary, *arguments], NOBODY)
    if not as_root:
        check.sheet.failed("readings without root", root_said[-300:])
        return
    lost = sorted(as_root - as_nobody)
    check.sheet.fact("metrics that need root", lost)
    check.sheet.fact("what the agent says without root", nobody_said[-4000:])
    gpu = [name for name in lost if name.startswith(("gpu_", "link_"))]
    check.sheet.holds("GPU readings are the same without root", not gpu, ", ".join(gpu) or "the same", "the same")
    gpm = {name for name in as_root if name in ("gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio")}
    if gpm:
        check.sheet.holds("GPM works without root", gpm <= as_nobody, ", ".join(sorted(gpm & as_nobody)) or "none", ", ".join(sorted(gpm)))
    else:
        check.sheet.not_available("GPM works without root", "this GPU or driver has no GPM")


def readable_copy(check):
    """Copies the binary to a place where another user may run it: only root may be able to read this folder."""
    folder = check.folder / "bin"
    folder.mkdir()
    check.folder.chmod(0o755)
    for name in FILES:
        shutil.copy(check.settings.binary.with_name(name), folder / name)
        (folder / name).chmod(0o755)
    return folder / "lockstep"


def families(command, user):
    """Returns the names of the metrics that it prints, and its log."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")} | {"HOME": "/tmp"}
    asked = subprocess.run(command, capture_output=True, text=True, timeout=40, user=user, group=user, extra_groups=[], env=env, cwd="/", stdin=subprocess.DEVNULL)
    names = {line.split("{")[0].split(" ")[0] for line in asked.stdout.splitlines() if line and not line.startswith("#")}
    return names, asked.stderr
