"""Faults on request, to see how the loop, its launcher and the cluster react.

They happen only in the first attempt, unless `--fail-attempts` gives a number: a restarted run passes them. The attempt is Lockstep's
number, or torchrun's restart count if there is none.
"""

import os
import signal
import sys

import torch.distributed as dist

HOWS = ("exception", "exit0", "sigkill", "sigstop", "full-disk")
BALLAST = "ballast"
BALLAST_BYTES_MAX = 1 << 30  # a disk with more free space is probably not a test disk


class DeliberateFault(RuntimeError):
    """Requested with --fail-at-step."""


def add_arguments(parser):
    group = parser.add_argument_group("faults on demand")
    group.add_argument("--fail-at-step", type=int, default=0, metavar="N", help="in the middle of step N; 0 is never")
    group.add_argument("--fail-rank", type=int, default=0, metavar="R")
    group.add_argument(
        "--fail-how", choices=HOWS, default="exception",
        help=f"full-disk fills the disk of --checkpoint-dir with a file {BALLAST!r}, if it has less than 1 GiB free",
    )
    group.add_argument("--fail-attempts", type=int, default=1, metavar="K", help="only in the first K attempts")


def strike(arguments, step):
    """Every rank calls it in the middle of every step."""
    due = step == arguments.fail_at_step and dist.get_rank() == arguments.fail_rank and attempt() <= arguments.fail_attempts
    if not due:
        return
    print(f"rank {arguments.fail_rank}: {arguments.fail_how} at step {step}, as asked for", flush=True)
    if arguments.fail_how == "exception":
        raise DeliberateFault(f"rank {arguments.fail_rank} fails at step {step}, as asked for")
    if arguments.fail_how == "exit0":
        sys.stdout.flush()
        os._exit(0)
    if arguments.fail_how == "full-disk":
        fill(arguments.checkpoint_dir)
        return
    os.kill(os.getpid(), signal.SIGKILL if arguments.fail_how == "sigkill" else signal.SIGSTOP)


def attempt():
    """Counted from 1."""
    given = os.environ.get("LOCKSTEP_ATTEMPT")
    return int(given) if given else int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1


def fill(folder):
    if not folder:
        raise SystemExit("--fail-how full-disk needs --checkpoint-dir: it fills that disk")
    os.makedirs(folder, exist_ok=True)
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free > BALLAST_BYTES_MAX:
        raise SystemExit(f"{folder} is on a disk with {free} bytes free; --fail-how full-disk fills only small ones, such as a tmpfs of 64 MiB")
    with open(os.path.join(folder, BALLAST), "ab") as ballast:
        os.posix_fallocate(ballast.fileno(), ballast.tell(), max(1, free))
