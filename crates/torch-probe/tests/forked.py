"""Ranks by fork: a gloo group of processes that share this process's imported torch, for tests that need many ranks quickly."""

import contextlib
import faulthandler
import os
import signal
import time
import traceback

DEADLINE_S = 300
ABORT_S = 10


def ranks(count, work, folder):
    """Runs work(rank) in `count` forked processes joined in one group; returns their exit codes, minus the signal where one ended it."""
    processes = [start(work, rank, count, folder) for rank in range(count)]
    return [wait(process) for process in processes]


def start(work, rank=0, count=0, folder=None):
    """Forks a process that calls work(rank), in a group when there is a count. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        import torch
        import torch.distributed as dist

        faulthandler.enable()
        torch.set_num_threads(1)
        if count:
            dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count)
        work(rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid, deadline_s=DEADLINE_S):
    """Returns its exit code as soon as it ends. After the deadline, the process prints the stacks of its threads on stderr and is ended."""
    code = ending(pid, deadline_s)
    if code is None:
        end(pid)
        raise AssertionError(f"a forked rank did not end within {deadline_s} s")
    return code


def end(pid):
    """Aborts the process, so that faulthandler prints its stacks; kills it if that fails."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGABRT)
        if ending(pid, ABORT_S) is None:
            kill(pid)


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def ending(pid, deadline_s):
    """Returns its exit code, or None if it still runs."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None
