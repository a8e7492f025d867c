"""torch's worker server in each rank, requested over its socket like the agent does."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
import types

import pytest
from conftest import INJECT, SCRIPTS, TIMEOUT_S

from lockstep_probe.server import lacks_recorder

torch = pytest.importorskip("torch")
has = {name: tuple(map(int, torch.__version__.split(".")[:2])) >= since for name, since in {"stacks": (2, 6), "counters": (2, 10)}.items()}


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("rank", timeout=10)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path, handler):
    connection = Unix(path)
    try:
        connection.request("POST", f"/handler/{handler}", body=b"", headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def until(condition, what):
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def stacks(path):
    """Returns the stacks of a rank that has arrived at its place."""
    found = []

    def there():
        found[:] = ask(path, "dump_traceback") if path.exists() else (0, "")
        return "waits_here" in found[1]

    until(there, "the rank never came to its place")
    return found


def test_a_rank_tells_where_it_is_and_its_output_stays_clean(ranks):
    answers = {}

    def meanwhile(folder, listener):
        for rank in range(2):
            answers[rank] = stacks(folder / f"rank-{rank}.sock")
            answers["counters"] = ask(folder / f"rank-{rank}.sock", "wait_counter_values")
            answers["flight"] = ask(folder / f"rank-{rank}.sock", "fr_trace_json")
        (folder / "leave").touch()
        answers["folder"] = folder

    finished = ranks(SCRIPTS / "asked.py", meanwhile=meanwhile)
    assert (finished.code, finished.output) == (0, "")
    for rank in range(2):
        status, text = answers[rank]
        assert status == 200 and f'File "{SCRIPTS / "asked.py"}", line 24 in waits_here' in text, text
        assert {hello.get("worker_server") for hello in finished.of("hello", rank)} == {f"rank-{rank}.sock"}
    if has["counters"]:
        assert json.loads(answers["counters"][1])["pytorch.wait_counter.c10d.init_process_group"]["total_calls"] == 1
        assert "pg_config" in json.loads(answers["flight"][1])
    assert not list(answers["folder"].glob("*.sock")), "a rank that has ended is asked no more"


def test_a_client_that_says_nothing_does_not_keep_a_rank(ranks):
    took = []

    def meanwhile(folder, listener):
        path = folder / "rank-0.sock"
        stacks(path)
        silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        silent.connect(str(path))
        silent.sendall(b"POST /handler/dump_traceback HTTP/1.1\r\nContent-Length: 99\r\n\r\n")
        (folder / "leave").touch()
        took.append((time.monotonic(), silent))

    finished = ranks(SCRIPTS / "asked.py", count=1, meanwhile=meanwhile)
    assert finished.code == 0 and time.monotonic() - took[0][0] < 4  # the server's own read gives up after 5 s


def test_a_rank_that_is_asked_all_the_time_ends_as_it_would(ranks):
    """A handler that requests the GIL of an interpreter during shutdown would abort the process."""
    asked = []

    def meanwhile(folder, listener):
        path = folder / "rank-0.sock"
        stacks(path)
        (folder / "leave").touch()
        try:
            while True:
                asked.append(ask(path, "dump_traceback")[0])
        except (OSError, http.client.HTTPException):
            pass

    finished = ranks(SCRIPTS / "asked.py", count=1, meanwhile=meanwhile)
    assert (finished.code, finished.output) == (0, "") and set(asked) == {200}


def test_a_forked_child_leaves_the_ranks_server_alone(ranks):
    def meanwhile(folder, listener):
        until((folder / "forked").exists, "the child never ended")
        assert stacks(folder / "rank-0.sock")[0] == 200
        (folder / "leave").touch()

    finished = ranks(SCRIPTS / "asked.py", "forks", count=1, meanwhile=meanwhile)
    assert finished.code == 0, finished.output


def test_it_is_left_out_when_it_is_not_wanted(ranks, monkeypatch):
    monkeypatch.setattr("conftest.rank_environment", lambda path, whole=__import__("conftest").rank_environment: {**whole(path), "LOCKSTEP_WORKER_SERVER": "off"})

    def meanwhile(folder, listener):
        until(lambda: len(listener.of("hello")) > 1, "the rank never joined its group")
        assert not list(folder.glob("*.sock"))
        (folder / "leave").touch()

    finished = ranks(SCRIPTS / "asked.py", count=1, meanwhile=meanwhile)
    assert finished.code == 0 and not any("worker_server" in hello for hello in finished.of("hello"))


@pytest.fixture
def limits(tmp_path, monkeypatch):
    """A process in cgroup `/a/b`, of a user without a limit."""
    from lockstep_probe import server

    monkeypatch.setattr(server, "is_root", lambda proc: True)
    (tmp_path / "cgroup").write_text("4:memory:/m\n3:pids:/a/b\n0::/a/b\n")

    def note(folder, most, now=10):
        folder = tmp_path / folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pids.max").write_text(f"{most}\n")
        (folder / "pids.current").write_text(f"{now}\n")

    return server, note, lambda: server.threads_left(str(tmp_path), str(tmp_path))


def test_the_smallest_room_of_all_limits_counts(limits, monkeypatch):
    server, note, left = limits
    assert left() is None
    note("a/b", "max")
    note("memory/m", 5)
    assert left() is None
    note("a", 2048, now=48)
    assert left() == 2000
    note("pids", 500, now=400)  # in a container, in which its own path does not exist
    assert left() == 100
    monkeypatch.setattr(server, "is_root", lambda proc: False)
    monkeypatch.setattr(server.resource, "getrlimit", lambda what: (64, 64))
    assert left() == 64
    monkeypatch.setattr(server.resource, "getrlimit", lambda what: (server.resource.RLIM_INFINITY,) * 2)
    assert left() == 100


@pytest.mark.parametrize(
    ("cpus", "ranks", "left", "fits"),
    [(224, 8, 2048, False), (224, 8, 3584, True), (224, 8, None, True), (2, 1, 17, False), (2, 1, 18, True), (None, 2, 36, True)],
)
def test_it_is_left_out_where_its_threads_would_come_near_the_limit(limits, monkeypatch, cpus, ranks, left, fits):
    server = limits[0]
    monkeypatch.setattr(server.os, "cpu_count", lambda: cpus)
    if fits:
        server.check_room(ranks, left)
    else:
        with pytest.raises(RuntimeError, match="raise the pids limit") as error:
            server.check_room(ranks, left)
        assert len(str(error.value)) < 200


DEEP = """
import os, pathlib, sys, torch
sys.path.insert(0, sys.argv[1])
from lockstep_probe.server import WorkerServer
folder = pathlib.Path(sys.argv[2])
(folder / "rank-0.sock").touch()  # of a rank before this one
server = WorkerServer({"LOCKSTEP_PROBE_SOCKET": str(folder / "probe.sock"), "RANK": "0"})
server.start(torch)
server.start(torch)
os.write(2, b"said by the script\\n")
assert server.name == "rank-0.sock" and (folder / "rank-0.sock").is_socket()
"""


def test_a_folder_with_a_long_name_has_its_server_too(tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    done = subprocess.run([sys.executable, "-c", DEEP, str(INJECT), str(deep)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "said by the script\n")
    assert os.listdir(deep) == []


@pytest.mark.parametrize(("backend", "recorder", "expected"), [("gloo", {}, True), ("gloo", {"_dump_fr_trace_json": print}, False), ("nccl", {}, False)])
def test_only_gloo_before_torch_2_8_has_no_flight_recorder(backend, recorder, expected):
    other = types.SimpleNamespace(
        _C=types.SimpleNamespace(_distributed_c10d=types.SimpleNamespace(**recorder)),
        distributed=types.SimpleNamespace(get_backend=lambda: backend),
    )
    assert lacks_recorder(other) is expected
