"""PyTorch's own worker server in this rank, on the UNIX socket `rank-N.sock` beside the probe's: the agent asks it for the stacks of all
Python threads, for the wait counters and for what the Flight Recorder holds. torch 2.4+; which questions it answers, its version decides.

It is started as soon as torch is there, so a rank that hangs before its process group can be asked too. It costs threads of torch's
own that sleep; LOCKSTEP_WORKER_SERVER=off leaves it out. Traps, and what is done about them:

- Its destructor joins threads, one of which may be reading from a client that says nothing: the object is never destroyed.
- A handler that wants the GIL from an interpreter that is being torn down ends the process with SIGABRT. So at exit the socket goes first,
  and who was heard already gets DRAIN_S to be answered.
- It says on stderr that it listens (torch 2.15). That line is taken out where no other thread can be writing; others pass.
- A forked child has the object and not the threads: it touches neither.
- Its pool has a thread for each CPU of the machine, in each rank, and one that cannot be started ends the process with SIGABRT. So where
  the limits on processes leave little room it is left out.
"""

import atexit
import contextlib
import ctypes
import os
import resource
import threading
import time

SOCKET_PATH_BYTES_MAX = 107  # sun_path holds 108 with its zero
DRAIN_S = 0.25
THREADS_MIN = 8  # of cpp-httplib's pool: max(8, CPUs - 1)
ROOM_FACTOR = 2  # the script and its libraries start threads too
STDERR = 2


class WorkerServer:
    def __init__(self, environ):
        self._folder = os.path.dirname(os.path.abspath(environ["LOCKSTEP_PROBE_SOCKET"]))
        self._wanted = environ.get("LOCKSTEP_WORKER_SERVER", "").lower() not in ("off", "0", "false", "no")
        self._file = f"rank-{environ['RANK']}.sock"
        self._address = None  # the path as the kernel knows it
        self._pid = None
        self._local_ranks = int(environ.get("LOCAL_WORLD_SIZE") or 1)
        self.name = None  # of the socket in the probe's folder, once the server listens

    def start(self, torch):
        """Starts it once, where `torch` has it; raises what goes wrong."""
        if not self._wanted or self._pid is not None:
            return
        self._pid = os.getpid()
        start = getattr(getattr(torch._C, "_distributed_c10d", None), "_WorkerServer", None)
        if start is None:  # before 2.4, or built without torch.distributed
            return
        check_room(self._local_ranks, threads_left())
        path = os.path.join(self._folder, self._file)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of this rank before it replaced itself by exec
        self._address = short(self._folder, self._file)
        with without_line(b"Server listening"):
            server = start(self._address, -1)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        atexit.register(self._close)
        self.name = self._file

    def _close(self):
        if os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, self._file))
            until = time.monotonic() + DRAIN_S
            while connections(self._address) and time.monotonic() < until:
                time.sleep(0.002)  # lets a handler have the GIL


def check_room(ranks, left):
    """Raises where the threads of all ranks' servers would come near the limit; none is known where `left` is None."""
    needed = (max(THREADS_MIN, (os.cpu_count() or 1) - 1) + 1) * ranks
    if left is not None and left < ROOM_FACTOR * needed:
        raise RuntimeError(f"the {ranks} ranks here would start {needed} threads for it, and the limits leave {left}; raise the pids limit or ulimit -u")


def threads_left(proc="/proc/self", cgroups="/sys/fs/cgroup"):
    """How many threads may still be started here, as far as limits are known."""
    left = [room for folder in pids_cgroups(proc, cgroups) if (room := cgroup_room(folder)) is not None]
    if not is_root(proc):
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        left += [limit] if limit != resource.RLIM_INFINITY else []
    return min(left, default=None)


def pids_cgroups(proc, cgroups):
    """Folders whose limit on processes holds here: that of the process's own cgroup and those above it."""
    with contextlib.suppress(OSError, ValueError), open(os.path.join(proc, "cgroup"), encoding="utf-8") as table:
        for line in table:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "pids" not in controllers.split(","):
                continue
            root = os.path.join(cgroups, "pids") if controllers else cgroups
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for length in range(len(parts) + 1):
                yield os.path.join(root, *parts[:length])


def cgroup_room(folder):
    """None without a limit."""
    try:
        numbers = []
        for name in ("pids.max", "pids.current"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                numbers.append(int(file.read()))
        return numbers[0] - numbers[1]
    except (OSError, ValueError):  # not there, or "max"
        return None


def is_root(proc):
    """The machine's root, whom the limit on a user's processes does not bind, and not that of a container without rights."""
    try:
        with open(os.path.join(proc, "uid_map"), encoding="utf-8") as table:
            return os.geteuid() == 0 and table.read().split()[:2] == ["0", "0"]
    except OSError:
        return os.geteuid() == 0


def short(folder, file):
    """A path the kernel takes: the folder by an open file where its own name is too long."""
    path = os.path.join(folder, file)
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    return f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}/{file}"


def connections(address):
    """How many clients are connected; the listening socket itself is not counted."""
    with open("/proc/self/net/unix", "rb") as table:
        sockets = [line.split(maxsplit=7) for line in table]
    own = [fields for fields in sockets if len(fields) == 8 and fields[7].rstrip() == os.fsencode(address)]
    return sum(fields[5] == b"03" for fields in own)  # SS_CONNECTED


@contextlib.contextmanager
def without_line(unwanted):
    """Holds back what is written to stderr meanwhile and passes it on without lines that hold `unwanted`.

    Only where this is the one Python thread: no other can be writing then, or forking a child that would keep the stand-in.
    """
    try:
        if threading.active_count() > 1:
            raise OSError
        held, real = os.memfd_create("stderr"), os.dup(STDERR)
    except OSError:  # or there is no stderr
        yield
        return
    os.dup2(held, STDERR)
    try:
        yield
    finally:
        os.dup2(real, STDERR)
        with open(held, "rb") as file:
            file.seek(0)
            rest = b"".join(line for line in file if unwanted not in line)
        if rest:
            os.write(real, rest)
        os.close(real)
