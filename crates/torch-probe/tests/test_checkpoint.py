"""lockstep_checkpoint: what a save leaves behind after any fault, and what it does not write twice."""

import contextlib
import errno
import json
import os
import pathlib
import random
import shutil
import tempfile
import time

import forked
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import lockstep_checkpoint
from lockstep_checkpoint import content, contents, durable, folders

FROZEN = 600  # rows of 1,000 numbers: 2.4 MB, a file of its own


def state_at(step, seed=0):
    """A training state: large and small frozen weights, weights and moments that each step changes, a rank's own state, objects that are
    not tensors."""
    still = torch.Generator().manual_seed(seed)
    moved = torch.Generator().manual_seed(1_000 + step)
    draw = lambda generator, *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return {
        "optimizer": {"state": {0: {"exp_avg": draw(moved, 300, 1_000), "step": torch.tensor(float(step))}}, "param_groups": [{"lr": 1 / step}]},
        "model": {
            "frozen": draw(still, FROZEN, 1_000), "frozen.bias": draw(still, 7), "head": draw(moved, 300, 1_000).to(torch.bfloat16),
            "mask": torch.tensor([True, False]), "nan": torch.full((5,), float("nan")), "empty": torch.empty(0), "scalar": torch.tensor(step),
        },
        "progress": {"step": step, "note": f"step {step}"},
    }  # fmt: skip


def assert_same(loaded, saved):
    """Compares bit for bit and key for key; DCP has converted the keys to strings."""
    if isinstance(saved, dict):
        assert loaded.keys() == {str(key) for key in saved}
        for key, value in saved.items():
            assert_same(loaded[str(key)], value)
    elif isinstance(saved, list):
        assert len(loaded) == len(saved)
        for ours, theirs in zip(loaded, saved):
            assert_same(ours, theirs)
    elif isinstance(saved, torch.Tensor):
        assert content.digest(loaded) == content.digest(saved)
    else:
        assert loaded == saved


def sidecar(path):
    return json.loads((pathlib.Path(path) / "lockstep.json").read_text())


def inodes(path):
    return {name: os.stat(os.path.join(path, name)).st_ino for name in sidecar(path)["files"]}


@pytest.fixture
def tmp_path():
    """In memory if the machine has such a disk: the tests check what is written, and flushing it to a busy disk takes minutes."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield pathlib.Path(folder)


# === what is saved ===


def test_what_is_loaded_is_what_was_saved_and_the_sidecar_says_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_RUN", "run-1")
    path = lockstep_checkpoint.save(state_at(7), tmp_path, 7, epoch=2, val_loss=float("nan"))
    assert path == str(tmp_path / "step-000007")
    assert_same(lockstep_checkpoint.load(path), state_at(7))
    assert_same(lockstep_checkpoint.load(path, keys=["model", "progress.step"])["progress"], {"step": 7})
    said = sidecar(path)
    sizes = {entry.name: entry.stat().st_size for entry in pathlib.Path(path).iterdir()}
    assert said.pop("files") == {name: size for name, size in sizes.items() if name not in (".metadata", "lockstep.json")}
    # Lockstep uses these to distinguish the run's own files from copies and from other files beside them.
    found = {entry.name: entry.stat() for entry in pathlib.Path(path).iterdir()}
    assert (said.pop("run"), said.pop("inode")) == ("run-1", found.pop("lockstep.json").st_ino)
    assert said.pop("folder") == os.stat(path).st_ino
    assert said.pop("inodes") == {name: [known.st_ino, known.st_size, known.st_mtime_ns] for name, known in found.items()}
    assert said == {"version": 1, "step": 7, "epoch": 2, "content": "full", "val_loss": None, "world_size": 1, "shared": {}}
    assert (tmp_path / "latest").read_text() == "step-000007\n"


def test_a_checkpoint_is_complete_also_where_the_sidecar_cannot_be_written_again(tmp_path, monkeypatch):
    write, calls = durable.write, []

    def full_disk_at_last(path, content):
        calls.append(os.path.basename(path))
        if calls[-1] == "lockstep.json" and calls.count("lockstep.json") == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(durable, "write", full_disk_at_last)
    path = lockstep_checkpoint.save(state_at(7), tmp_path, 7)
    assert calls.count("lockstep.json") == 2 and "run" not in sidecar(path)
    assert_same(lockstep_checkpoint.load(path), state_at(7))


def test_any_reader_of_dcp_reads_a_checkpoint_with_links(tmp_path):
    for step in (1, 2, 3):
        path = lockstep_checkpoint.save(state_at(step), tmp_path, step)
    assert sidecar(path)["shared"]
    into = {"model": {key: torch.zeros_like(value) for key, value in state_at(3)["model"].items()}}
    dcp.load(into, checkpoint_id=path)
    assert_same(into, {"model": state_at(3)["model"]})


def test_weights_that_do_not_change_are_on_the_disk_once_and_never_change_what_is_loaded(tmp_path):
    paths = [lockstep_checkpoint.save(state_at(step), tmp_path, step) for step in range(1, 6)]
    for step, path in enumerate(paths, start=1):
        assert_same(lockstep_checkpoint.load(path), state_at(step))
    # The first save cannot know them, the second writes them into separate files, from the third on they are links.
    assert [len(sidecar(path)["shared"]) for path in paths] == [0, 0, 2, 2, 2]
    assert len({inodes(path)[name] for path in paths[1:] for name in sidecar(paths[-1])["shared"]}) == 2
    # Removing the original does not affect the others.
    shutil.rmtree(paths[1])
    assert_same(lockstep_checkpoint.load(paths[4]), state_at(5))


def test_who_says_what_is_frozen_shares_from_the_second_save_on(tmp_path):
    frozen = ["model.frozen", "model.frozen.bias"]
    paths = [lockstep_checkpoint.save(state_at(step), tmp_path, step, frozen=frozen) for step in (1, 2)]
    assert "__0_30.distcp" in sidecar(paths[1])["shared"]
    assert_same(lockstep_checkpoint.load(paths[1]), state_at(2))


def test_a_frozen_weight_that_starts_to_move_is_written_again(tmp_path):
    for step in (1, 2, 3):
        lockstep_checkpoint.save(state_at(step), tmp_path, step)
    moved = state_at(4)
    moved["model"]["frozen"][-1, -1] = -0.0 * moved["model"]["frozen"][-1, -1]
    path = lockstep_checkpoint.save(moved, tmp_path, 4)
    assert_same(lockstep_checkpoint.load(path), moved)
    assert_same(lockstep_checkpoint.load(tmp_path / "step-000003"), state_at(3))


def test_a_damaged_file_is_written_again_and_not_shared(tmp_path):
    for step in (1, 2):
        lockstep_checkpoint.save(state_at(step), tmp_path, step)
    [damaged] = [file for file in (tmp_path / "step-000002").glob("*.distcp") if 2_400_000 < file.stat().st_size < 2_500_000]
    with open(damaged, "r+b") as file:
        file.seek(1_000_000)
        file.write(b"\x00\x01\x02\x03")
    path = lockstep_checkpoint.save(state_at(3), tmp_path, 3)
    assert_same(lockstep_checkpoint.load(path), state_at(3))
    assert inodes(path)[damaged.name] != os.stat(damaged).st_ino


def test_equal_digests_are_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "digest", lambda _tensor: "00")
    for step in (1, 2, 3):
        path = lockstep_checkpoint.save(state_at(step), tmp_path, step)
    monkeypatch.undo()
    assert_same(lockstep_checkpoint.load(path), state_at(3))


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_a_disk_that_cannot_link_gets_every_file_in_full(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2, 3):
        path = lockstep_checkpoint.save(state_at(step), tmp_path, step)
    assert sidecar(path)["shared"] == {}
    assert_same(lockstep_checkpoint.load(path), state_at(3))


def test_model_only_saves_lie_between_full_ones_and_share_with_them(tmp_path):
    paths = [lockstep_checkpoint.save(state_at(step), tmp_path, step, full_every=3) for step in range(1, 8)]
    assert [sidecar(path)["content"] for path in paths] == ["full", "model", "model"] * 2 + ["full"]
    assert lockstep_checkpoint.load(paths[2]).keys() == {"model"}
    assert all(sidecar(path)["shared"] for path in paths[2:])
    assert (tmp_path / "latest").read_text() == "step-000007\n"
    shutil.rmtree(paths[6])
    assert lockstep_checkpoint.newest(tmp_path) == paths[3]
    assert lockstep_checkpoint.newest(tmp_path, full=False) == paths[5]
    with pytest.raises(KeyError, match="a model-only save needs one of the keys"):
        lockstep_checkpoint.save({"weights": {}}, tmp_path, 8, full=False)


def test_two_ranks_share_what_each_of_them_holds(tmp_path):
    def work(rank):
        for step in (1, 2, 3, 4):
            own = {**state_at(step), "ranks": {str(rank): {"random": torch.full((4,), rank + step)}}}
            lockstep_checkpoint.save(own, tmp_path / "saved", step, full_every=2)

    assert forked.ranks(2, work, tmp_path) == [0, 0]
    said = sidecar(tmp_path / "saved" / "step-000003")
    assert said["world_size"] == 2 and said["content"] == "full"
    assert {name[:3] for name in said["files"] if name.endswith("distcp")} == {"__0", "__1"}
    # Saved by two ranks, first only the model and now everything: all unchanged tensors are shared.
    shared = {name for name in contents.read(tmp_path / "saved" / "step-000003")._files if name in said["shared"]}
    keys = {item.key for name in shared for item in contents.read(tmp_path / "saved" / "step-000003")._files[name]["items"]}
    assert keys >= {"model.frozen", "model.frozen.bias", "model.mask", "model.nan"}
    loaded = lockstep_checkpoint.load(tmp_path / "saved" / "step-000003")
    assert {rank: own["random"].tolist() for rank, own in loaded.pop("ranks").items()} == {"0": [3] * 4, "1": [4] * 4}
    assert_same(loaded, state_at(3))


# === what is complete ===


def test_a_folder_is_never_written_into_twice(tmp_path):
    torn = tmp_path / "step-000005"
    torn.mkdir()
    (torn / "__0_10.distcp").write_bytes(b"cut off")
    assert lockstep_checkpoint.newest(tmp_path) is None
    path = lockstep_checkpoint.save(state_at(5), tmp_path, 5)
    assert path == str(tmp_path / "step-000005.2")
    assert (torn / "__0_10.distcp").read_bytes() == b"cut off"
    assert lockstep_checkpoint.newest(tmp_path) == path
    with pytest.raises(ValueError, match="there is no .metadata: the save did not finish"):
        lockstep_checkpoint.load(torn)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: (path / "__0_10.distcp").unlink(), "__0_10.distcp is missing"),
        (lambda path: os.truncate(path / "__0_10.distcp", 100), "__0_10.distcp has 100 bytes instead of"),
        (lambda path: (path / "lockstep.json").write_text("{"), "lockstep.json cannot be read"),
        (lambda path: os.truncate(path / ".metadata", 0), ".metadata is empty"),
        (lambda path: (path / ".metadata").unlink(), "there is no .metadata"),
    ],
)
def test_what_is_torn_is_named_and_the_one_before_is_the_newest(tmp_path, harm, said):
    before = lockstep_checkpoint.save(state_at(1), tmp_path, 1)
    path = pathlib.Path(lockstep_checkpoint.save(state_at(2), tmp_path, 2))
    harm(path)
    assert said in lockstep_checkpoint.problem(path)
    assert lockstep_checkpoint.newest(tmp_path) == before


def test_the_newest_is_the_one_finished_last_not_the_furthest(tmp_path):
    for step in (1, 2, 3):
        lockstep_checkpoint.save(state_at(step), tmp_path, step)
    gone_back = lockstep_checkpoint.save(state_at(2), tmp_path, 2)
    assert lockstep_checkpoint.newest(tmp_path) == gone_back == str(tmp_path / "step-000002.2")


def test_killed_at_any_moment_a_save_is_whole_or_not_there(tmp_path):
    draw = random.Random(7)
    parent = tmp_path / "saved"

    def save_for_ever(_rank):
        done = newest_step(parent)
        for step in range(done + 1, 10_000):
            lockstep_checkpoint.save(state_at(step), parent, step)

    began = time.monotonic()
    lockstep_checkpoint.save(state_at(1), parent, 1)
    one_save_s = time.monotonic() - began
    torn = rounds = 0
    # Enough of both: interrupted saves, and complete saves in between.
    while rounds < 10 or torn < 5 or newest_step(parent) < 4:
        rounds += 1
        assert rounds < 60, f"of {rounds} kills {torn} hit a save; {newest_step(parent)} saves came to their end"
        pid = forked.start(save_for_ever)
        time.sleep(draw.uniform(0, 3 * one_save_s))
        forked.kill(pid)
        whole = [path for path in folders.all_in(parent) if folders.complete(path)]
        torn += len(folders.all_in(parent)) - len(whole)
        latest = parent / "latest"
        assert not latest.exists() or str(parent / latest.read_text().strip()) in whole
        kept = sorted(whole, key=folders.finished_ns)[-2:]
        for path in kept:
            assert_same(lockstep_checkpoint.load(path), state_at(folders.step_of(path)))
        for path in set(folders.all_in(parent)) - set(kept):
            shutil.rmtree(path)


def newest_step(parent):
    path = lockstep_checkpoint.newest(parent)
    return folders.step_of(path) if path else 0


def test_a_rank_that_dies_in_a_save_leaves_no_checkpoint(tmp_path):
    def work(rank):
        lockstep_checkpoint.save(state_at(1), tmp_path / "saved", 1)
        if rank == 1:
            content.digest = lambda _tensor: os._exit(9)
        with contextlib.suppress(RuntimeError):
            lockstep_checkpoint.save(state_at(2), tmp_path / "saved", 2)

    assert forked.ranks(2, work, tmp_path) == [0, 9]
    assert lockstep_checkpoint.newest(tmp_path / "saved") == str(tmp_path / "saved" / "step-000001")
    assert (tmp_path / "saved" / "latest").read_text() == "step-000001\n"


# === room ===


def test_a_save_that_does_not_fit_is_refused_on_every_rank_before_a_byte_is_written(tmp_path, small_disk):
    def work(rank):
        lockstep_checkpoint.save(state_at(1), small_disk, 1)
        refused = None
        try:
            for step in (2, 3, 4):
                lockstep_checkpoint.save(state_at(step), small_disk, step, link=False)
        except lockstep_checkpoint.NotEnoughSpace as failure:
            refused = failure
        assert refused is not None and refused.errno == errno.ENOSPC
        (tmp_path / f"refused-{rank}").write_text(str(refused))

    assert forked.ranks(2, work, tmp_path) == [0, 0]
    said = (tmp_path / "refused-0").read_text()
    assert said == (tmp_path / "refused-1").read_text()
    assert "the next checkpoint needs" in said and "bytes and" in said and "are free" in said
    whole = folders.all_in(small_disk)
    assert whole and all(folders.complete(path) for path in whole), "nothing begun is left"
    assert (small_disk / "latest").read_text().strip() == os.path.basename(lockstep_checkpoint.newest(small_disk))


def test_what_will_be_linked_needs_no_room(small_disk):
    for step in range(1, 4):
        path = lockstep_checkpoint.save(state_at(step), small_disk, step, frozen=["model.frozen"])
    assert sidecar(path)["shared"]


def test_a_disk_that_fills_up_within_a_save_fails_it_and_the_space_comes_back(small_disk, monkeypatch):
    first = lockstep_checkpoint.save(state_at(1), small_disk, 1)
    with open(small_disk / "ballast", "wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, 5 << 20)
    monkeypatch.setattr(lockstep_checkpoint.space, "check", lambda *_: None)
    before = os.statvfs(small_disk).f_bavail
    with pytest.raises(lockstep_checkpoint.SaveFailed, match="step 2 is not saved: the part of this process failed: .*No space left"):
        lockstep_checkpoint.save(state_at(2), small_disk, 2, link=False)
    assert os.statvfs(small_disk).f_bavail == before
    assert lockstep_checkpoint.newest(small_disk) == first
    assert (small_disk / "latest").read_text() == "step-000001\n"
    assert not dist.is_initialized()
