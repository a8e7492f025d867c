"""Shared fixtures: a replacement for the agent's socket, and ranks with the probe injected as the agent injects it.

`torchrun` is the real launcher. `ranks` starts the same processes with the same environment without the launcher, which takes seconds to
start: for tests of a rank's behaviour that do not depend on the launcher.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading

import forked
import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
INJECT = PACKAGE / "inject"
RECIPE = PACKAGE / "recipes" / "ddp" / "main.py"
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
RANKS = 2
TIMEOUT_S = int(os.environ.get("LOCKSTEP_TEST_TIMEOUT_S", "300"))  # it only ends a test that hangs; an import of torch may take a minute
sys.path.insert(0, str(INJECT))
sys.dont_write_bytecode = True  # files in inject/ are embedded in the binary
# Before torch is imported: this process shares the cores with its ranks and with another one, and threads that wait for work spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Listener:
    """Receives datagrams on a thread, as fast as the agent.

    Linux queues ten datagrams per socket. On two busy cores a thread with normal priority, or one that parses, would miss the eleventh.
    """

    def __init__(self, path):
        self.path = str(path)
        self._datagrams = []
        self._records = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(0.2)
        self._open = True
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    @property
    def records(self):
        """All records so far, parsed. It is always the same list."""
        datagrams = self._datagrams[len(self._records) :]
        self._records.extend(json.loads(datagram) for datagram in datagrams)
        return self._records

    @property
    def sizes(self):
        return [len(datagram) for datagram in self._datagrams]

    def _receive(self):
        with contextlib.suppress(PermissionError):  # only root may
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
        while True:
            try:
                datagram = self._socket.recv(65536)
            except socket.timeout:
                if not self._open:
                    return
                continue
            self._datagrams.append(datagram)

    def close(self):
        """Returns after everything sent before has been read."""
        self._open = False
        self._thread.join()
        self._socket.close()

    def of(self, kind, rank=None):
        return [r for r in self.records if r["kind"] == kind and rank in (None, r["rank"])]


class Finished:
    def __init__(self, code, output, listener):
        self.code = code
        self.output = output
        self.records = listener.records
        self.sizes = listener.sizes
        self.of = listener.of


# Backward passes in pytest's own process start threads of autograd. After that, forked processes cannot have such threads.
TRAIN_HERE = {"test_plan.py", "test_unit.py"}


def pytest_collection_modifyitems(items):
    """Runs tests that fork ranks before those that train in this process. With several workers, each takes the next file of this order."""
    items.sort(key=lambda item: item.path.name in TRAIN_HERE)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if terminal := config.pluginmanager.getplugin("terminalreporter"):
        config.pluginmanager.register(AtOnce(terminal))


class AtOnce:
    """Prints why a test failed at once: if a later test hangs and the run is killed, the reason would be lost."""

    def __init__(self, terminal):
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.terminal.write_line(f"\nafter {report.duration:.1f} s: {report.longreprtext}")


@pytest.fixture(scope="session")
def torchrun(tmp_path_factory):
    """torchrun(script, *arguments, options=(), meanwhile=None, environ={}, timeout_s=TIMEOUT_S) -> Finished; `meanwhile(folder, listener)` runs beside it"""

    def run(*command, options=(), meanwhile=None, environ=None, timeout_s=TIMEOUT_S):
        folder = tmp_path_factory.mktemp("torchrun")
        listener = Listener(folder / "socket")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", *options]
        try:
            with open(folder / "output", "w") as output:
                env = {**environment(listener.path), **(environ or {})}
                process = subprocess.Popen([*launcher, *map(str, command)], env=env, cwd=folder, stdout=output, stderr=output)
            try:
                if meanwhile is not None:
                    meanwhile(folder, listener)
                code = process.wait(timeout=timeout_s)
            finally:
                if process.poll() is None:
                    process.terminate()  # it also ends its ranks
                    process.wait(timeout=TIMEOUT_S)
        finally:
            listener.close()
        return Finished(code, (folder / "output").read_text(), listener)

    return run


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """ranks(script, *arguments, probe=True, count=RANKS, flags=(), meanwhile=None) -> Finished; `meanwhile(folder, listener)` runs beside them"""

    def run(*command, probe=True, count=RANKS, flags=(), meanwhile=None):
        from torch.distributed import TCPStore

        folder = tmp_path_factory.mktemp("ranks")
        listener = Listener(folder / "socket")
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent hosts it
        job = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        job.update(TORCHELASTIC_RUN_ID="test", TORCHELASTIC_USE_AGENT_STORE=True, TORCHELASTIC_RESTART_COUNT=0)
        processes = []
        try:
            for rank in range(count):
                own = {**job, "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
                env = {**environment(listener.path if probe else None), **{key: str(value) for key, value in own.items()}}
                line = [sys.executable, *flags, *map(str, command)]
                with open(folder / f"output-{rank}", "w") as output:
                    processes.append(subprocess.Popen(line, env=env, cwd=folder, stdout=output, stderr=output))
            if meanwhile is not None:
                meanwhile(folder, listener)
            codes = endings(processes)
        finally:
            for process in processes:
                process.kill()
            listener.close()
        output = "".join((folder / f"output-{rank}").read_text() for rank in range(count))
        still = [rank for rank, code in enumerate(codes) if code is None]
        assert not still, f"after {TIMEOUT_S} s the ranks {still} still ran; they have said:\n{output}"
        return Finished(next((code for code in codes if code), 0), output, listener)

    return run


def notes_of(record):
    """Returns the notes of a record, without the one that each rank has under Gloo with torch before 2.8."""
    from lockstep_probe.server import NO_RECORDER

    return [note for note in record.get("notes") or [] if note != NO_RECORDER]


def endings(processes):
    """Returns the exit status of each process; None for those that still run after the time limit. Those print their stacks and are ended.
    """
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(timeout=0 if None in codes else TIMEOUT_S))
        except subprocess.TimeoutExpired:
            codes.append(None)
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=forked.ABORT_S)
    return codes


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 12 MiB that can really become full; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", folder], capture_output=True)
    if not mounted or mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def environment(socket_path):
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKSTEP", "PYTHONPATH"))}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **({} if socket_path is None else rank_environment(socket_path))}


def rank_environment(socket_path):
    return {
        "PYTHONPATH": str(INJECT),
        "LOCKSTEP_PROBE_SOCKET": str(socket_path),
        "LOCKSTEP_RUN": "run-1",
        "LOCKSTEP_ATTEMPT": "3",
        "LOCKSTEP_NODE": "node-a",
        "LOCKSTEP_PROBE_DEBUG": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture
def knobbed(tmp_path):
    """knobbed(work, knobs=None, count=1, **environ) -> Trained; a folder of its own for each call"""
    from knobbed import train

    def run(work, knobs=None, count=1, **environ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return train(folder, work, knobs, count, **environ)

    return run
