"""The page: what the probe writes there, and what remains after an interrupted write."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pages
import pytest
from conftest import INJECT, SCRIPTS, TIMEOUT_S, rank_environment

from lockstep_probe import members, page

WORKER = {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}


def opened(folder):
    path = folder / "page-3"
    pages.create(path)
    own = page.Page({"LOCKSTEP_PROBE_SOCKET": str(folder / "probe.sock"), "RANK": "3"})
    own.reach(page.STARTING)
    return own, path


def test_a_record_says_where_the_rank_is_and_since_when(tmp_path):
    own, path = opened(tmp_path)
    assert pages.read(path)[:1] + pages.read(path)[2:] == (1, 0, 0, 0, 1, page.STARTING, 0)
    before = time.monotonic_ns()
    seen = []
    for move in [
        lambda: own.reach(page.TORCH_IMPORTED),
        lambda: own.reach(page.RENDEZVOUS),
        lambda: own.reach(page.GROUP_MADE),
        own.wrapped,
        lambda: own.enter(page.DATA),
        lambda: own.fetched(True),
        own.begin_backward,
        own.rest,
        lambda: own.enter(page.OPTIMIZER),
        lambda: own.stepped(1),
        own.wrapped,
        lambda: own.begin(page.SAVE),
        lambda: own.begin(page.COLLECTIVE),
        own.end,
        own.end,
        own.end,
        lambda: own.enter(page.ENDING),
    ]:
        move()
        record = pages.read(path)
        seen.append((record.phase, record.stage, record.batches, record.backwards, record.step))
        assert before <= record.since_ns <= time.monotonic_ns()
    assert seen == [
        (1, 1, 0, 0, 0),
        (2, 2, 0, 0, 0),
        (3, 3, 0, 0, 0),
        (4, 4, 0, 0, 0),
        (5, 4, 0, 0, 0),
        (6, 5, 1, 0, 0),
        (7, 5, 1, 1, 0),
        (9, 5, 1, 1, 0),
        (8, 5, 1, 1, 0),
        (9, 5, 1, 1, 1),
        (9, 5, 1, 1, 1),
        (11, 5, 1, 1, 1),
        (10, 5, 1, 1, 1),
        (11, 5, 1, 1, 1),
        (9, 5, 1, 1, 1),
        (9, 5, 1, 1, 1),
        (12, 5, 1, 1, 1),
    ]
    numbers = sorted(record.number for record in pages.slots(path))
    assert numbers[1] - numbers[0] == 1 and numbers[1] == pages.read(path).number


def test_until_the_process_group_is_made_a_rank_that_imports_moves(tmp_path):
    own, path = opened(tmp_path)
    for phase, moves in [(page.STARTING, 1), (page.TORCH_IMPORTED, 1), (page.RENDEZVOUS, 0), (page.GROUP_MADE, 0)]:
        own.reach(phase)
        before = pages.read(path)
        own.imported()
        after = pages.read(path)
        assert (after.phase, after.number - before.number) == (phase, moves)


def test_without_a_loader_the_forward_pass_begins_where_the_step_ends(tmp_path):
    own, path = opened(tmp_path)
    own.begin_backward()
    own.stepped(1)
    assert pages.read(path).phase == page.FORWARD


def test_a_page_of_another_kind_is_left_alone(tmp_path):
    for name, make in {
        "short": lambda path: path.write_bytes(bytes(4095)),
        "long": lambda path: path.write_bytes(bytes(8192)),
        "link": lambda path: (pages.create(tmp_path / "target"), path.symlink_to(tmp_path / "target")),
        "pipe": os.mkfifo,
        "none": lambda path: None,
    }.items():
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        path = folder / "page-3"
        make(path)
        before = path.read_bytes() if path.is_file() else None
        own = page.Page({"LOCKSTEP_PROBE_SOCKET": str(folder / "probe.sock"), "RANK": "3"})
        own.reach(page.TORCH_IMPORTED)
        own.enter(page.DATA)
        own.close()
        assert (path.read_bytes() if path.is_file() else None) == before, name


def test_a_page_that_comes_late_is_taken_at_the_next_stage_and_one_that_is_closed_says_nothing(tmp_path):
    own = page.Page({"LOCKSTEP_PROBE_SOCKET": str(tmp_path / "probe.sock"), "RANK": "3"})
    own.reach(page.STARTING)
    path = tmp_path / "page-3"
    pages.create(path)
    own.reach(page.TORCH_IMPORTED)
    assert pages.read(path).phase == page.TORCH_IMPORTED
    own.close()
    assert pages.slots(path) == [None, None]
    own.reach(page.GROUP_MADE)
    assert pages.slots(path) == [None, None]


WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from lockstep_probe.page import Page, FORWARD
page = Page({"LOCKSTEP_PROBE_SOCKET": os.path.abspath("probe.sock"), "RANK": "3"})
page.reach(1)
while True:
    page.fetched(True)
    page.begin_backward()
    page.stepped(page.step + 1)
"""


def writer(folder):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(INJECT)], cwd=folder)


def until_written(path):
    until = time.monotonic() + TIMEOUT_S
    while pages.read(path) is None or pages.read(path).step == 0:
        assert time.monotonic() < until, "the writer has not begun"
        time.sleep(0.002)


def test_a_writer_that_is_stopped_anywhere_leaves_a_whole_record(tmp_path):
    path = tmp_path / "page-3"
    pages.create(path)
    process, spoiled, last, chance = writer(tmp_path), 0, 0, random.Random(25)
    try:
        until_written(path)
        for _ in range(1500):
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            found = pages.slots(path)
            newest = max(filter(None, found), default=None)
            assert newest is not None, "both slots are spoiled"
            assert newest.number >= last
            assert newest.batches - newest.step in (0, 1) and newest.backwards - newest.step in (0, 1), "parts of two records"
            spoiled, last = spoiled + found.count(None), newest.number
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(chance.uniform(0, 0.0005))
    finally:
        process.kill()
        process.wait()
    print(f"{spoiled} of 1500 stops were inside a write")  # some tens of them: without the second slot this test fails


def test_a_writer_that_is_killed_anywhere_leaves_a_whole_record(tmp_path):
    chance = random.Random(25)
    for n in range(20):
        folder = tmp_path / str(n)
        folder.mkdir()
        path = folder / "page-3"
        pages.create(path)
        process = writer(folder)
        until_written(path)
        time.sleep(chance.uniform(0, 0.01))
        process.kill()
        process.wait()
        assert pages.read(path) is not None


FORKS = """
import os, sys, lockstep_probe
page = lockstep_probe.probe.page
page.reach(3)
pid = os.fork()
if pid == 0:
    page.enter(7)
    page.fetched(True)
    lockstep_probe.probe.turn_off()
    os._exit(0)
os.waitpid(pid, 0)
print(page._map is not None)
os._exit(0)
"""


def test_a_forked_child_writes_nothing(tmp_path):
    path = tmp_path / "page-3"
    pages.create(path)
    env = {**os.environ, **WORKER, **rank_environment(tmp_path / "probe.sock")}
    done = subprocess.run([sys.executable, "-c", FORKS], env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    record = pages.read(path)
    assert (record.number, record.phase, record.batches) == (2, 3, 0)


def at(path, phase):
    """The record of a rank once it is in this phase."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        record = pages.read(path)
        if record is not None and record.phase == phase:
            return record
        assert time.monotonic() < until, f"the rank has not come to phase {phase}: {record}"
        time.sleep(0.005)


def test_a_model_that_is_sharded_counts_as_wrapped(ranks):
    torch = pytest.importorskip("torch")
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip(f"torch {torch.__version__} has it elsewhere")

    def meanwhile(folder, listener):
        for rank in range(2):
            pages.create(folder / f"page-{rank}")
        for place in ("imported", "made"):
            for rank in range(2):
                (folder / f"{place}-{rank}").touch()
        for rank in range(2):
            at(folder / f"page-{rank}", page.MODEL_WRAPPED)
            (folder / f"wrapped-{rank}").touch()

    finished = ranks(SCRIPTS / "positions.py", "fsdp2", meanwhile=meanwhile)
    assert finished.code == 0, finished.output


def test_ranks_are_seen_where_they_are(ranks):
    pytest.importorskip("torch")
    found = {}

    def meanwhile(folder, listener):
        both = [folder / f"page-{rank}" for rank in range(2)]
        for path in both:
            pages.create(path)

        def seen(place, phase, who=(0, 1)):
            for rank in who:
                found[place, rank] = at(both[rank], phase)

        def leave(place, who=(0, 1)):
            for rank in who:
                (folder / f"{place}-{rank}").touch()

        seen("imported", page.TORCH_IMPORTED)
        leave("imported", [0])
        seen("rendezvous", page.RENDEZVOUS, [0])
        leave("imported")
        for place, phase in {
            "made": page.GROUP_MADE,
            "wrapped": page.MODEL_WRAPPED,
            "data": page.DATA,
            "forward": page.FORWARD,
            "backward": page.BACKWARD,
            "host": page.HOST,
        }.items():
            seen(place, phase)
            leave(place)
        seen("late", page.COLLECTIVE, [0])
        leave("late")
        leave("saved")
        found["folder"] = folder

    finished = ranks(SCRIPTS / "positions.py", meanwhile=meanwhile)
    assert finished.code == 0, finished.output
    folder = found["folder"]
    for rank in range(2):
        assert (found["data", rank].batches, found["data", rank].stage) == (0, page.MODEL_WRAPPED)
        assert (found["forward", rank].batches, found["forward", rank].stage) == (1, page.FIRST_BATCH)
        last = pages.read(folder / f"page-{rank}")
        assert (last.phase, last.step, last.batches, last.backwards) == (page.ENDING, 2, 2, 2)
        groups = json.loads((folder / f"rank-{rank}.groups").read_text())
        assert sorted(groups.values()) == ["0-1", "0-1"] and len(groups) == 2


def test_ranks_of_a_group_are_ranges():
    assert [members.ranges(ranks) for ranks in ([], [4], [3, 1, 2], [0, 2, 3, 8])] == ["", "4", "1-3", "0,2-3,8"]


