"""Faults on request, to see how the other stages react. Only in the first attempt, unless `--fail-attempts` gives a number."""

import os
import signal

import torch.distributed as dist

HOWS = ("exception", "sigkill", "sigstop")


class DeliberateFault(RuntimeError):
    """Requested with --fail-at-step."""


def add_arguments(parser):
    group = parser.add_argument_group("faults on demand")
    group.add_argument("--fail-at-step", type=int, default=0, metavar="N", help="at the begin of step N; 0 is never")
    group.add_argument("--fail-rank", type=int, default=1, metavar="R")
    group.add_argument("--fail-how", choices=HOWS, default="exception")
    group.add_argument("--fail-attempts", type=int, default=1, metavar="K", help="only in the first K attempts")


def strike(arguments, step):
    """Every rank calls it at the start of every step."""
    due = step == arguments.fail_at_step and dist.get_rank() == arguments.fail_rank and attempt() <= arguments.fail_attempts
    if not due:
        return
    print(f"rank {arguments.fail_rank}: {arguments.fail_how} at step {step}, as asked for", flush=True)
    if arguments.fail_how == "exception":
        raise DeliberateFault(f"rank {arguments.fail_rank} fails at step {step}, as asked for")
    os.kill(os.getpid(), signal.SIGKILL if arguments.fail_how == "sigkill" else signal.SIGSTOP)


def attempt():
    """Counted from 1."""
    given = os.environ.get("LOCKSTEP_ATTEMPT")
    return int(given) if given else int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
