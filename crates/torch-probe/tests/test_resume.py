"""The recipe `resume` with real torchrun: training after a failure equals training without it.

Runs without a failure are forked: nothing in them depends on the launcher, which takes seconds to start.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import recipes
from conftest import INJECT, PACKAGE, environment

RECIPE = PACKAGE / "recipes" / "resume" / "main.py"
SMALL = ("--layers=1", "--width=32", "--context=16", "--batch-size=4", "--log-every=1", "--steps=40", "--validate-every=20")
DEADLINE_S = 300


class Run:
    """A torchrun of two ranks (or `count`), its output in a file."""

    def __init__(self, folder, *arguments, attempt=1, resume_from=None, count=2):
        env = {**environment(None), "PYTHONPATH": str(INJECT), "PYTHONDONTWRITEBYTECODE": "1", "LOCKSTEP_ATTEMPT": str(attempt)}
        env.update({"LOCKSTEP_RESUME_FROM": str(resume_from)} if resume_from else {})
        self.checkpoints = folder / "saved"
        self._output = folder / f"output-{attempt}-{time.monotonic_ns()}"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        command = [*launcher, str(RECIPE), *SMALL, f"--checkpoint-dir={self.checkpoints}", *map(str, arguments)]
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output)

    @property
    def output(self):
        return self._output.read_text()

    @property
    def losses(self):
        return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)", self.output, re.MULTILINE)}

    @property
    def resumed(self):
        return re.findall(r"^resumed from (\S+) at step (\d+), (.*)", self.output, re.MULTILINE)

    def wait(self):
        try:
            self.process.wait(timeout=DEADLINE_S)
        finally:
            self.process.kill()
        return self

    def wait_for_step(self, step):
        deadline = time.monotonic() + DEADLINE_S
        while step not in self.losses:
            assert time.monotonic() < deadline and self.process.poll() is None, self.output
            time.sleep(0.02)


def forked_run(folder, *arguments, **options):
    run = recipes.run(folder, "resume", *SMALL, f"--checkpoint-dir={folder / 'saved'}", *arguments, **options)
    assert run.code == 0, run.output
    return run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    run = forked_run(folder, "--checkpoint-every=20", "--plain")
    run.checkpoints = folder / "saved"
    assert sorted(run.losses) == list(range(1, 41))
    return run


def assert_continues(run, uninterrupted, first, last):
    assert run.losses == {step: uninterrupted.losses[step] for step in range(first, last + 1)}


def test_it_learns_and_leaves_checkpoints_of_every_kind(uninterrupted):
    assert float(uninterrupted.losses[40]) < float(uninterrupted.losses[1]) - 0.5
    names = {entry.name for entry in uninterrupted.checkpoints.iterdir()}
    assert names == {"step-000020", "step-000040", "latest", "best.pth"}
    said = json.loads((uninterrupted.checkpoints / "step-000040" / "lockstep.json").read_text())
    assert (said["step"], said["content"], said["world_size"]) == (40, "full", 2) and said["val_loss"] > 0


def test_killed_then_stopped_then_resumed_it_prints_the_losses_of_an_uninterrupted_run(uninterrupted, tmp_path):
    killed = Run(tmp_path, "--checkpoint-every=20", "--fail-at-step=27", "--fail-rank=1", "--fail-how=sigkill").wait()
    assert killed.process.returncode != 0
    assert_continues(killed, uninterrupted, 1, 26)
    assert os.listdir(tmp_path / "saved" / "emergency-000026") == ["rank-0.pth"], "a snapshot that lacks a rank's part"

    # A save that was interrupted by a kill: only its last file is missing.
    torn = tmp_path / "saved" / "step-000026"
    shutil.copytree(tmp_path / "saved" / "step-000020", torn)
    (torn / ".metadata").unlink()
    stopped = Run(tmp_path, "--resume=latest", "--checkpoint-every=1000", "--step-delay-ms=300", attempt=2)
    try:
        stopped.wait_for_step(22)
        stopped.process.send_signal(signal.SIGTERM)
    finally:
        stopped.wait()
    [(path, step, how)] = stopped.resumed
    assert (path, step, how) == (str(tmp_path / "saved" / "step-000020"), "20", "exactly"), stopped.output
    last = max(stopped.losses)
    assert 22 <= last < 40
    assert f"stopped after step {last}, as asked for" in stopped.output
    assert_continues(stopped, uninterrupted, 21, last)
    assert "emergency" not in stopped.output, "the ranks agreed"

    saved = tmp_path / "saved" / f"step-{last:06d}{'.2' if last == 26 else ''}"
    rest = forked_run(tmp_path, attempt=3, resume_from=saved)
    assert rest.resumed == [(str(saved), str(last), "exactly")]
    assert_continues(rest, uninterrupted, last + 1, 40)


def test_an_exception_in_one_rank_leaves_a_snapshot_of_all_that_training_goes_on_from(uninterrupted, tmp_path):
    failed = Run(tmp_path, "--fail-at-step=36", "--fail-rank=1", "--checkpoint-every=1000").wait()
    assert failed.process.returncode != 0
    assert "DeliberateFault: rank 1 fails at step 36, as asked for" in failed.output
    snapshot = tmp_path / "saved" / "emergency-000035"
    assert sorted(os.listdir(snapshot)) == ["rank-0.pth", "rank-1.pth"], failed.output
    rest = forked_run(tmp_path, "--resume=latest", "--fail-at-step=36", "--fail-rank=1", "--checkpoint-every=1000", attempt=2)
    assert rest.resumed == [(str(snapshot), "35", "exactly")]
    assert_continues(rest, uninterrupted, 36, 40)


def test_another_number_of_ranks_goes_on_and_a_full_disk_takes_nothing_away(uninterrupted, small_disk, tmp_path):
    (tmp_path / "saved").symlink_to(small_disk)
    here = shutil.copytree(uninterrupted.checkpoints / "step-000020", small_disk / "step-000020")
    (small_disk / "latest").write_text("step-000020\n")
    run = Run(tmp_path, "--resume=latest", "--fail-at-step=22", "--fail-how=full-disk", "--checkpoint-every=5", count=1).wait()
    assert run.process.returncode != 0
    assert run.resumed == [(str(tmp_path / "saved" / "step-000020"), "20", "with new random numbers: it was saved by other ranks, or not by all")]
    assert sorted(run.losses) == [21, 22, 23, 24, 25]
    assert "NotEnoughSpace: [Errno 28] the next checkpoint needs" in run.output
    assert (small_disk / "latest").read_text() == "step-000020\n"
    assert [path.name for path in small_disk.glob("step-*")] == [pathlib.Path(here).name]
