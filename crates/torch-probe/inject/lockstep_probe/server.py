"""PyTorch's own worker server in this rank, on the UNIX socket `rank-N.sock` beside the probe's: the agent asks it for the stacks of all
Python threads, for the wait counters and for the entries of the Flight Recorder. torch 2.4+; the version decides which requests it
supports.

It starts as soon as torch is imported, so a rank that hangs before its process group can answer too. It needs some threads of torch's
own that sleep; LOCKSTEP_WORKER_SERVER=off disables it. Problems and their solutions:

- Its destructor joins threads, one of which may be reading from a silent client: the object is never destroyed.
- A handler that requests the GIL of an interpreter during its shutdown ends the process with SIGABRT. So at exit the socket is removed
  first, and requests that have arrived get DRAIN_S for their answers.
- It prints on stderr that it listens (torch 2.15). That line is removed if no other thread can be writing; other lines are kept.
- A forked child has the object but not the threads: it uses neither.
- Its pool has a thread for each CPU of the machine, in each rank, and one that cannot be started ends the process with SIGABRT. So where
  the limits on processes leave little room, it is not started.
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
NO_RECORDER = "this torch has no Flight Recorder for Gloo, 2.8 or later has one: in a hang, only pages and stacks show which rank is late"


class WorkerServer:
    def __init__(self, environ):
        self._folder = os.path.dirname(os.path.abspath(environ["LOCKSTEP_PROBE_SOCKET"]))
        self._wanted = environ.get("LOCKSTEP_WORKER_SERVER", "").lower() not in ("off", "0", "false", "no")
        self._file = f"rank-{environ['RANK']}.sock"
        self._address = None  # the path in the kernel's table
        self._pid = None
        self._local_ranks = int(environ.get("LOCAL_WORLD_SIZE") or 1)
        self.name = None  # name of the socket in the probe's folder, once the server listens

    def start(self, torch):
        """Starts the server once, if `torch` has it; raises its errors."""
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
                time.sleep(0.002)  # lets a handler get the GIL


def lacks_recorder(torch):
    """Returns True if the operations of the process group are not recorded: with Gloo, before torch 2.8."""
    c10d = getattr(torch._C, "_distributed_c10d", None)
    return torch.distributed.get_backend() == "gloo" and not hasattr(c10d, "_dump_fr_trace_json")


def check_room(ranks, left):
    """Raises an error if the threads of all ranks' servers would come near the limit; `left` is None without a limit."""
    needed = (max(THREADS_MIN, (os.cpu_count() or 1) - 1) + 1) * ranks
    if left is not None and left < ROOM_FACTOR * needed:
        raise RuntimeError(f"the {ranks} ranks here would start {needed} threads for it, and the limits leave {left}; raise the pids limit or ulimit -u")


def threads_left(proc="/proc/self", cgroups="/sys/fs/cgroup"):
    """Returns how many threads may still be started here, according to the known limits; None without a limit."""
    left = [room for folder in pids_cgroups(proc, cgroups) if (room := cgroup_room(folder)) is not None]
    if not is_root(proc):
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        left += [limit] if limit != resource.RLIM_INFINITY else []
    return min(left, default=None)


def pids_cgroups(proc, cgroups):
    """Returns the folders whose limit on processes applies here: the process's own cgroup and its parents."""
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
    """Returns None without a limit."""
    try:
        numbers = []
        for name in ("pids.max", "pids.current"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                numbers.append(int(file.read()))
        return numbers[0] - numbers[1]
    except (OSError, ValueError):  # missing, or "max"
        return None


def is_root(proc):
    """Returns True for the machine's root, to whom the limit on a user's processes does not apply; False for the root of a container
    without capabilities."""
    try:
        with open(os.path.join(proc, "uid_map"), encoding="utf-8") as table:
            return os.geteuid() == 0 and table.read().split()[:2] == ["0", "0"]
    except OSError:
        return os.geteuid() == 0


def short(folder, file):
    """Returns a path that the kernel accepts: through an open file if the folder's own name is too long."""
    path = os.path.join(folder, file)
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    return f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}/{file}"


def connections(address):
    """Returns the number of connected clients, without the listening socket itself."""
    with open("/proc/self/net/unix", "rb") as table:
        sockets = [line.split(maxsplit=7) for line in table]
    own = [fields for fields in sockets if len(fields) == 8 and fields[7].rstrip() == os.fsencode(address)]
    return sum(fields[5] == b"03" for fields in own)  # SS_CONNECTED


@contextlib.contextmanager
def without_line(unwanted):
    """Captures what is written to stderr meanwhile, and prints it without lines that contain `unwanted`.

    Only if this is the only Python thread: then no other thread can write, or fork a child that would keep the replacement.
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
