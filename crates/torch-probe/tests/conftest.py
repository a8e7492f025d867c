"""What the tests share: a stand-in for the agent's socket, and torchrun with the probe injected as the agent injects it."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
INJECT = PACKAGE / "inject"
RECIPE = PACKAGE / "recipes" / "ddp" / "main.py"
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
RANKS = 2
sys.path.insert(0, str(INJECT))


class Listener:
    """Receives datagrams on a thread, as fast as the agent would, and keeps them parsed."""

    def __init__(self, path):
        self.path = str(path)
        self.records = []
        self.sizes = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(0.2)
        self._open = True
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self):
        while True:
            try:
                datagram = self._socket.recv(65536)
            except socket.timeout:
                if not self._open:
                    return
                continue
            self.sizes.append(len(datagram))
            self.records.append(json.loads(datagram))

    def close(self):
        """Returns once everything sent before has been read."""
        self._open = False
        self._thread.join()
        self._socket.close()

    def of(self, kind, rank=None):
        return [r for r in self.records if r["kind"] == kind and rank in (None, r["rank"])]


class Finished:
    def __init__(self, process, listener):
        self.code = process.returncode
        self.output = process.stdout
        self.records = listener.records
        self.sizes = listener.sizes
        self.of = listener.of


@pytest.fixture
def torchrun(tmp_path):
    """torchrun(script, *arguments, probe=True, ranks=RANKS, env={}, options=()) -> Finished"""

    def run(*command, probe=True, ranks=RANKS, env=None, options=(), timeout=60):
        listener = Listener(tmp_path / f"probe-{len(list(tmp_path.iterdir()))}.socket")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKSTEP", "PYTHONPATH"))}
        environment.update(rank_environment(listener.path) if probe else {}, OMP_NUM_THREADS="1", **(env or {}))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
        process = subprocess.run(
            [*launcher, *map(str, command)],
            env=environment, cwd=tmp_path, timeout=timeout, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        listener.close()
        return Finished(process, listener)

    return run


def rank_environment(socket_path):
    return {
        "PYTHONPATH": str(INJECT),
        "LOCKSTEP_PROBE_SOCKET": str(socket_path),
        "LOCKSTEP_RUN": "run-1",
        "LOCKSTEP_ATTEMPT": "3",
        "LOCKSTEP_NODE": "node-a",
        "LOCKSTEP_PROBE_DEBUG": "1",
    }
