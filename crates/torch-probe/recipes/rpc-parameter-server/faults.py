"""Faults on request, to see how the others react. Only in the first attempt, unless `--fail-attempts` gives a number."""

import os
import signal

HOWS = ("exception", "sigkill", "leave")


class DeliberateFault(RuntimeError):
    """Requested with --fail-at-step."""


def add_arguments(parser):
    group = parser.add_argument_group("faults on demand")
    group.add_argument("--fail-at-step", type=int, default=0, metavar="N", help="when the weights are at update N; 0 is never")
    group.add_argument("--fail-rank", type=int, default=1, metavar="R", help="a worker: 1 or more")
    group.add_argument("--fail-how", choices=HOWS, default="exception", help="leave: stops training early, and says so to the server")
    group.add_argument("--fail-attempts", type=int, default=1, metavar="K", help="only in the first K attempts")


def strike(arguments, rank, step):
    """Every worker calls it before each gradient. Returns True if this worker must leave now."""
    due = 0 < arguments.fail_at_step <= step and rank == arguments.fail_rank and attempt() <= arguments.fail_attempts
    if not due:
        return False
    print(f"rank {rank}: {arguments.fail_how} at step {step}, as asked for", flush=True)
    if arguments.fail_how == "exception":
        raise DeliberateFault(f"rank {rank} fails at step {step}, as asked for")
    if arguments.fail_how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def attempt():
    """Counted from 1."""
    given = os.environ.get("LOCKSTEP_ATTEMPT")
    return int(given) if given else int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
