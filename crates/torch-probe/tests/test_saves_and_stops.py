"""Saves as records, and the stop after an agreed step: first the parts, then real ranks."""

import errno
import io
import json
import os
import pathlib
import signal
import threading
import time

import pytest
from conftest import RANKS, SCRIPTS, TIMEOUT_S, Listener, rank_environment
from test_unit import WORKER

import lockstep_probe
from lockstep_probe import saves, stop, written
from lockstep_probe.probe import Probe

# === where a save goes ===


@pytest.mark.parametrize(
    ("target", "path"),
    [("a.pt", "/cwd/a.pt"), (b"/x/../a.pt", "/a.pt"), (io.BytesIO(), None), ("/dev/null", None), (3, None)],
)
def test_a_save_to_a_file_is_named_by_its_absolute_path(target, path, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: "/cwd")
    assert saves.file_path((None, target), {})[0] == path
    assert saves.file_path((None,), {"f": target})[0] == path


class Writer:
    path = "/w"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [({"checkpoint_id": "/c", "storage_writer": Writer()}, "/c"), ({"storage_writer": Writer()}, "/w"),
     ({"checkpoint_id": "s3://bucket/step-1"}, "s3://bucket/step-1")],
)
def test_a_distributed_save_is_named_by_its_folder(arguments, path):
    assert saves.checkpoint_path(({},), arguments)[0] == path


def test_of_several_ranks_failures_this_rank_s_own_is_told():
    class CheckpointException(BaseException):
        failures = {0: (ValueError("other"), None), 3: (OSError(errno.ENOSPC, "No space left on device"), None)}

    assert saves.root_cause(CheckpointException(), 3).errno == errno.ENOSPC
    assert str(saves.root_cause(CheckpointException(), 1)) == "other"
    assert saves.root_cause(KeyError("x"), 0).args == ("x",)


@pytest.fixture
def probe(tmp_path):
    listener = Listener(tmp_path / "socket")
    probe = Probe({**WORKER, **rank_environment(listener.path)})
    probe.listener = listener
    yield probe
    if listener._open:
        listener.close()


def told(probe):
    probe.listener.close()
    return [{key: r[key] for key in ("phase", "path", "error", "errno") if key in r} for r in probe.listener.of("checkpoint")]


def test_results_and_exceptions_pass_through_unchanged(probe):
    failure = OSError(errno.ENOSPC, "No space left on device")

    def original(value, f):
        if f == "/full":
            raise failure
        return (value, f)

    save = saves.watched(probe, original, "torch_save", saves.file_path)
    assert save(1, "/a") == (1, "/a") and save(1, f="/b") == (1, "/b")
    with pytest.raises(OSError) as raised:
        save(1, "/full")
    assert raised.value is failure
    with pytest.raises(TypeError):
        save()
    assert save.__name__ == "original" and save.__wrapped__ is original
    assert told(probe) == [
        {"phase": "begin", "path": "/a"}, {"phase": "end", "path": "/a"},
        {"phase": "begin", "path": "/b"}, {"phase": "end", "path": "/b"},
        {"phase": "begin", "path": "/full"},
        {"phase": "failure", "path": "/full", "error": "OSError: [Errno 28] No space left on device", "errno": "ENOSPC"},
    ]
    assert not probe.saves.under_way


def test_a_save_inside_a_save_is_a_part_of_it(probe):
    inner = saves.watched(probe, lambda value, f: None, "torch_save", saves.file_path)
    outer = saves.watched(probe, lambda state, checkpoint_id: inner(1, f"{checkpoint_id}/__0_0.distcp"), "dcp", saves.checkpoint_path)
    outer({}, checkpoint_id="/c")
    assert told(probe) == [{"phase": "begin", "path": "/c"}, {"phase": "end", "path": "/c"}]


def test_a_broken_watcher_does_not_stop_a_save(probe):
    def broken(args, kwargs):
        raise RuntimeError("inside")

    assert saves.watched(probe, lambda value: value, "dcp", broken)(7) == 7
    probe.saves.probe.say = lambda *args, **kwargs: 1 / 0
    assert saves.watched(probe, lambda value, f: value, "torch_save", saves.file_path)(7, "/a") == 7


def test_an_asynchronous_save_ends_when_its_future_does(probe):
    from concurrent.futures import Future

    futures = [Future(), Future(), Future()]
    save = saves.watched(probe, lambda n, checkpoint_id: futures[n], "dcp", saves.checkpoint_path)
    threads = threading.active_count()
    for n in range(3):
        assert save(n, checkpoint_id=f"/c{n}") is futures[n]
    assert threading.active_count() == threads
    futures[0].set_result(None)
    futures[1].set_exception(ValueError("torn"))
    futures[2].cancel()
    phases = [(r["phase"], r["path"]) for r in told(probe)]
    assert phases == [
        ("begin", "/c0"), ("begin", "/c1"), ("begin", "/c2"), ("end", "/c0"), ("failure", "/c1"), ("failure", "/c2"),
    ]


# === which files a save wrote ===


def noted(probe):
    """Returns path -> {name: what is recorded about the file}, for all recorded saves."""
    file = os.path.join(os.path.dirname(probe.channel.path), "saves", "0.jsonl")
    lines = [json.loads(line) for line in open(file)] if os.path.exists(file) else []
    return {line["path"]: {name: rest for name, *rest in line["files"]} for line in lines}


def known(path, exact=True):
    found = os.stat(path)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_nlink, exact]


def test_a_save_to_a_file_is_noted_by_what_a_rename_leaves_as_it_is(probe, tmp_path):
    def original(value, f):
        if hasattr(f, "write"):
            f.write(value)
        else:
            pathlib.Path(f).write_bytes(value)

    save = saves.watched(probe, original, "torch_save", saves.file_path)
    path, beside = str(tmp_path / "a.pt"), str(tmp_path / "b.pt.tmp")
    save(b"12345", path)
    with open(beside, "wb") as file:
        save(b"123", file)  # still in the file object's buffer
    os.rename(beside, tmp_path / "b.pt")
    save(b"1", io.BytesIO())
    device, inode, size, _, links, _ = known(tmp_path / "b.pt")
    told = noted(probe)
    assert told[path] == {"": known(path)}
    assert told[beside][""][:3] == [device, inode, size] and told[beside][""][4:] == [links, False]
    assert told[beside][""][3] <= known(tmp_path / "b.pt")[3]
    assert len(told) == 2


class Stored:
    def __init__(self, *names):
        self.storage_data = {n: Named(name) for n, name in enumerate(names)}


class Named:
    length = 1

    def __init__(self, name):
        self.relative_path = name


def dcp_saved(probe, folder, names, **options):
    def original(state, checkpoint_id, **rest):
        for name in [*names, ".metadata", "notes.txt", "other.metadata", "__7_0.distcp"]:
            (folder / name).write_bytes(b"" if name == "__7_0.distcp" else b"x")
        return Stored(*names)

    saves.watched(probe, original, "dcp", saves.checkpoint_path)({}, checkpoint_id=str(folder), **options)
    return noted(probe).get(str(folder))


def test_of_a_distributed_save_only_the_files_that_it_names_are_noted(probe, tmp_path):
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "before.pt").write_bytes(b"a person's")
    told = dcp_saved(probe, folder, ["__0_0.distcp", "__1_0.distcp"])
    names = [".metadata", "__0_0.distcp", "__1_0.distcp", "__7_0.distcp"]  # the last: of a rank that had nothing to save
    assert told == {name: known(folder / name) for name in names}


def test_one_rank_of_a_node_notes_a_distributed_save_unless_it_saves_alone(probe, tmp_path):
    probe.saves.written._local_rank = 1
    folders = [tmp_path / name for name in ("together", "alone")]
    for folder in folders:
        folder.mkdir()
    assert dcp_saved(probe, folders[0], ["__1_0.distcp"]) is None
    assert "__1_0.distcp" in dcp_saved(probe, folders[1], ["__1_0.distcp"], no_dist=True)


def test_what_cannot_be_noted_does_not_stop_a_save(probe, tmp_path):
    (tmp_path / "saves").write_text("no folder")
    path = tmp_path / "a.pt"
    save = saves.watched(probe, lambda value, f: path.write_bytes(value), "torch_save", saves.file_path)
    assert save(b"1", str(path)) == 1 and save(b"1", str(tmp_path / "gone.pt")) == 1
    assert probe.faults == 0 and [record["phase"] for record in told(probe)] == ["begin", "end", "begin", "end"]


def test_no_more_is_noted_than_an_agent_that_is_away_may_find(probe, tmp_path, monkeypatch):
    monkeypatch.setattr(written, "FILE_BYTES_MAX", 400)
    save = saves.watched(probe, lambda value, f: pathlib.Path(f).write_bytes(value), "torch_save", saves.file_path)
    for n in range(20):
        save(b"1", str(tmp_path / f"{n}.pt"))
    assert 0 < len(noted(probe)) < 5


# === the order ===


def order(folder, text):
    (folder / stop.FILE).write_text(text)
    return stop.StopOrder(str(folder / "socket"))


def test_a_step_s_end_looks_for_an_order_a_few_times_a_second_and_obeys_it_once(tmp_path):
    waiting = stop.StopOrder(str(tmp_path / "socket"))
    looks = []
    waiting._read = lambda: looks.append(1)
    for n in range(1000):  # a second of steps
        assert not waiting.step_ended(n, n * 1_000_000)
    assert len(looks) == 4
    obeying = order(tmp_path, '{"step": 12, "grace_ms": 5}')
    assert [step for step in range(1, 20) if obeying.step_ended(step, step * 10**9)] == [12]


def test_a_rank_that_is_past_the_step_ends_at_once(tmp_path):
    assert order(tmp_path, '{"step": 12}').step_ended(40, 10**9)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": "12"}', '{"step": null}', "\xff"])
def test_what_is_no_order_is_none(tmp_path, text):
    assert not order(tmp_path, text).step_ended(99, 10**9)


def test_a_handler_of_the_script_gets_its_signal_and_without_one_the_way_out_is_an_exception(tmp_path):
    due = order(tmp_path, '{"step": 1}')
    assert due.step_ended(1, 10**9) and due.due
    before = signal.getsignal(signal.SIGTERM)
    seen = []
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
        due.act()
        assert seen == [signal.SIGTERM] and not due.due
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(lockstep_probe.StopTraining) as raised:
            due.act()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(raised.value, SystemExit) and (raised.value.code, raised.value.step) == (0, 1)


# === real ranks ===


def stop_soon(folder, listener):
    """Writes the order like the agent: after the furthest rank, seconds ahead."""
    deadline = time.monotonic() + TIMEOUT_S
    while not all(len(listener.of("step", rank)) >= 5 for rank in range(RANKS)):
        assert time.monotonic() < deadline, "the ranks do not train"
        time.sleep(0.02)
    step = max(record["step"] for record in listener.of("step")) + 40
    (folder / "new").write_text(json.dumps({"step": step, "grace_ms": 30_000}))
    os.rename(folder / "new", folder / stop.FILE)
    listener.agreed = step


def assert_all_stopped_there(finished, how):
    last = [finished.of("step", rank)[-1]["step"] for rank in range(RANKS)]
    said = [(record["rank"], record["step"], record["how"]) for record in sorted(finished.of("stop"), key=lambda r: r["rank"])]
    assert said == [(rank, last[0], how) for rank in range(RANKS)], finished.output
    assert last == [last[0]] * RANKS
    assert finished.code == 0, finished.output
    assert finished.of("error") == [] and "Traceback" not in finished.output
    assert len(finished.of("bye")) == RANKS
    return last[0]


def test_scripts_that_expect_sigterm_save_at_the_same_step_on_all_ranks(torchrun):
    agreed = []

    def meanwhile(folder, listener):
        stop_soon(folder, listener)
        agreed.append(listener.agreed)

    finished = torchrun(SCRIPTS / "stops.py", "--handler", meanwhile=meanwhile)
    step = assert_all_stopped_there(finished, "signal")
    assert [step] == agreed
    assert finished.output.count(f"saved at step {step}") == RANKS
    ends = [record for record in finished.of("checkpoint") if record["phase"] == "end"]
    assert sorted((record["rank"], record["step"]) for record in ends) == [(rank, step) for rank in range(RANKS)]


def test_scripts_that_know_nothing_of_stops_end_without_a_failure(torchrun):
    finished = torchrun(SCRIPTS / "stops.py", meanwhile=stop_soon)
    assert_all_stopped_there(finished, "exit")
    assert finished.output.count("cleaned up") == RANKS
    assert "saved" not in finished.output


def test_a_script_may_catch_the_way_out_and_save(ranks):
    finished = ranks(SCRIPTS / "stops.py", "--catch", meanwhile=stop_soon)
    step = assert_all_stopped_there(finished, "exit")
    assert finished.output.count(f"saved at step {step}") == RANKS


@pytest.fixture(scope="module")
def saved(ranks):
    return ranks(SCRIPTS / "saves.py")


def test_each_save_is_told_once_by_each_rank(saved):
    assert saved.code == 0, saved.output
    folder = saved.output.split("rank 0 in ")[1].splitlines()[0]
    for rank in range(RANKS):
        told = [(r["phase"], r["step"], r["format"], r["path"]) for r in saved.of("checkpoint", rank)]
        told.sort(key=lambda record: record[1])  # the thread of an asynchronous save may report its end after the next one has started
        files = [(1, "torch_save", f"{folder}/plain-{rank}.pt"), (2, "torch_save", f"{folder}/file-{rank}.pt")]
        folders = [(3, "dcp", f"{folder}/step-3"), (4, "dcp", f"{folder}/step-4")]
        expected = [(phase, *save) for save in files + folders for phase in ("begin", "end")]
        lost = (5, "torch_save", f"{folder}/no/such/folder/{rank}.pt")
        assert told == expected + [("begin", *lost), ("failure", *lost)]
        ends = [record for record in saved.of("checkpoint", rank) if record["phase"] == "end"]
        assert all(0 <= record["blocked_s"] <= record["seconds"] < 30 for record in ends)
        for record in ends[:2]:
            assert record["bytes"] == os.path.getsize(record["path"])
        [failure] = [record for record in saved.of("checkpoint", rank) if record["phase"] == "failure"]
        assert failure["error"].startswith("RuntimeError: Parent directory") and "bytes" not in failure
    assert saved.of("checkpoint", 0)[5]["bytes"] > 256 * 256 * 4, "of the whole distributed checkpoint"


def test_the_time_of_a_save_is_part_of_its_step_and_of_nothing_else_in_it(saved):
    for rank in range(RANKS):
        steps = {record["step"]: record for record in saved.of("step", rank)}
        assert set(steps) == set(range(1, 7))
        assert "save_s" not in steps[1]
        for step in range(2, 7):
            parts = sum(steps[step].get(part, 0.0) for part in ("data_s", "forward_s", "backward_s", "sync_s", "optimizer_s", "save_s"))
            assert 0 < steps[step]["save_s"] and parts <= steps[step]["step_s"]
            assert steps[step]["sync_s"] == 0.0, "collectives inside a save are the save's"
        ends = [record for record in saved.of("checkpoint", rank) if record["phase"] != "begin"]
        for record in ends[:3]:
            assert steps[record["step"] + 1]["save_s"] == pytest.approx(record["blocked_s"], rel=0.05, abs=2e-3)
