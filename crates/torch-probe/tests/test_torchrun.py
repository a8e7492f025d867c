"""Real torchrun, real ranks: the recipe, and scripts like those of users."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import recipes
from conftest import INJECT, PACKAGE, RANKS, RECIPE, SCRIPTS, TIMEOUT_S, Listener, notes_of, rank_environment

PARTS = ("data_s", "forward_s", "backward_s", "sync_s", "optimizer_s")


def assert_sound(finished, steps, count=RANKS):
    """Every rank sent hello, counted its steps without a gap, split them into parts that add up, and sent good-bye."""
    assert finished.code == 0, finished.output
    assert max(finished.sizes) <= 8192
    for rank in range(count):
        assert {record["pid"] for record in finished.of("step", rank)} == {finished.of("hello", rank)[0]["pid"]}
        records = finished.of("step", rank)
        assert [record["step"] for record in records] == list(range(1, steps + 1))
        assert records[-1]["dropped"] == 0
        for earlier, later in zip(records, records[1:]):
            assert later["mono_ns"] > earlier["mono_ns"]
            assert later["step_s"] == pytest.approx((later["mono_ns"] - earlier["mono_ns"]) * 1e-9, rel=0.1, abs=2e-3)
            assert sum(later.get(part, 0.0) for part in PARTS) <= later["step_s"]
        bye = finished.of("bye", rank)
        assert [record["step"] for record in bye] == [steps]
        assert notes_of(bye[0]) == []
    assert {record["run"] for record in finished.records} == {"run-1"}
    assert {record["attempt"] for record in finished.records} == {3}


# === the recipe ===

SMALL = ("--steps=30", "--log-every=1", "--layers=1", "--width=64", "--batch-size=8", "--num-workers=1")


@pytest.fixture(scope="module")
def trained(torchrun):
    return torchrun(RECIPE, *SMALL)


def losses_printed(output):
    return re.findall(r"^step \d+ loss \S+", output, re.MULTILINE)


def test_the_recipe_is_watched_under_torchrun(trained):
    assert_sound(trained, steps=30)
    for rank in range(RANKS):
        known = {key: value for hello in trained.of("hello", rank) for key, value in hello.items()}
        assert (known["backend"], known["device"], known["world_size"]) == ("gloo", "cpu", 2)
        steps = trained.of("step", rank)
        assert all(step["samples"] == 8 and step["tokens"] == 512 for step in steps)
        assert all(part in step for step in steps for part in PARTS)
        assert {step["sync_source"] for step in steps} == {"ddp_backward_tail"}
        assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
        assert 0 < steps[0]["lr_min"] == steps[0]["lr_max"] < steps[9]["lr_max"], "it warms up"
        assert all(step["input_mean"] != step["label_mean"] for step in steps if "input_mean" in step), "of next letters"
        assert any("input_deviation" in step for step in steps)
        assert known["parameters"] == int(re.search(r"(\d+) parameters", trained.output)[1])
    printed = [float(line.split()[-1]) for line in losses_printed(trained.output)]
    assert [step["loss"] for step in trained.of("step", 0)] == pytest.approx(printed, rel=1e-5)
    # DDP has averaged the gradients: if both ranks computed the norm of a step, the norms are equal.
    norms = [{r["step"]: r["grad_norm"] for r in trained.of("step", rank) if "grad_norm" in r} for rank in range(RANKS)]
    shared = norms[0].keys() & norms[1].keys()
    assert shared and all(norms[0][step] == pytest.approx(norms[1][step], rel=1e-5) for step in shared)


def test_unwatched_and_with_a_checkpoint_in_between_the_recipe_trains_the_same(trained, ranks, tmp_path):
    saving = ("--checkpoint-dir", tmp_path / "saved", "--checkpoint-every=10")
    first = ranks(RECIPE, *SMALL, "--steps=20", *saving, probe=False)
    rest = ranks(RECIPE, *SMALL, *saving, probe=False)
    assert first.records == rest.records == []
    assert losses_printed(first.output) + losses_printed(rest.output) == losses_printed(trained.output)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["step-10.pt", "step-20.pt", "step-30.pt"]


def test_a_rate_far_too_high_explodes_as_numbers_before_it_is_anything_else(ranks):
    finished = ranks(RECIPE, *SMALL, "--lr=1000", "--grad-clip=1e30", "--seed=5", count=1)
    steps = finished.of("step", 0)
    assert len(steps) == 30
    assert all(isinstance(step["loss"], float) and isinstance(step["grad_norm"], float) for step in steps)
    assert steps[4]["loss"] > 1000 * steps[0]["loss"]
    assert steps[4]["grad_norm"] > 100 * steps[0]["grad_norm"]


def test_sigterm_ends_the_recipe_and_every_rank_says_good_bye(tmp_path):
    listener = Listener(tmp_path / "socket")
    environment = {**os.environ, **rank_environment(listener.path)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with open(tmp_path / "output", "w+") as output:
        process = subprocess.Popen(
            [*launcher, str(RECIPE), "--steps=100000"], env=environment, stdout=output, stderr=output, cwd=tmp_path
        )
        try:
            wait_until(lambda: all(len(listener.of("step", rank)) > 3 for rank in range(RANKS)))
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=TIMEOUT_S)
        finally:
            process.kill()
            listener.close()
        output.seek(0)
        text = output.read()
    assert code != 0
    assert len(listener.of("bye")) == RANKS, text
    assert listener.of("error") == []


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


# === scripts as users write them ===


def test_accumulated_gradients_are_one_step_and_clipping_hides_nothing(ranks, tmp_path):
    watched = ranks(SCRIPTS / "accumulate.py", count=1)
    alone = recipes.run(tmp_path, SCRIPTS / "accumulate.py", ranks=1)
    assert_sound(watched, steps=6, count=1)
    pattern = r"rank=(\d) step=(\d+) norm=(\S+) loss=(\S+)"
    said = sorted(re.findall(pattern, watched.output))
    assert said == sorted(re.findall(pattern, alone.output))
    for rank, step, norm, _ in said:
        record = watched.of("step", int(rank))[int(step) - 1]
        assert record["grad_norm"] == pytest.approx(float(norm), rel=1e-6)
        assert record["grad_norm"] > 0.01, "the norm before clipping"
        assert record["loss_source"] == "backward_mean"
        assert "samples" not in record and "data_s" not in record


def test_an_optimizer_of_one_s_own_with_forked_workers_and_validation(ranks):
    finished = ranks(SCRIPTS / "own_optimizers.py", count=1)
    assert_sound(finished, steps=12, count=1)
    assert all(step["samples"] == 8 and "tokens" not in step for step in finished.of("step"))


def test_an_optimizer_torch_knows_nothing_of_is_counted_by_backward_passes_and_noted(ranks):
    finished = ranks(SCRIPTS / "own_optimizers.py", "--bare", count=1)
    assert finished.code == 0, finished.output
    steps = finished.of("step", 0)
    assert len(steps) == 7 * 12 - 64
    assert "loss" in steps[-1] and "optimizer_s" not in steps[-1]
    assert any("each backward pass" in note for note in finished.of("hello", 0)[-1]["notes"])


def test_a_slow_rank_shows_as_the_other_rank_s_waiting(ranks):
    finished = ranks(SCRIPTS / "slow_rank.py")
    assert_sound(finished, steps=20)

    def median(part, rank, steps):
        times = sorted(step[part] for step in finished.of("step", rank) if step["step"] in steps)
        return times[len(times) // 2]

    assert median("sync_s", 0, range(12, 21)) > median("sync_s", 0, range(2, 10)) + 0.02
    assert median("sync_s", 1, range(12, 21)) < 0.01
    slow = [step for step in finished.of("step", 1) if step["step"] >= 12]
    assert all(step["forward_s"] > 0.03 for step in slow)
    assert median("backward_s", 0, range(12, 21)) < 0.02, "waiting is no computing"


def test_a_scaled_loss_is_reported_unscaled_and_skipped_steps_are_counted(ranks):
    finished = ranks(SCRIPTS / "scaled.py", count=1)
    assert_sound(finished, steps=4, count=1)
    steps = finished.of("step", 0)
    printed = [float(text) for text in re.findall(r"loss=(\S+)", finished.output)]
    assert [step["loss"] for step in steps] == pytest.approx(printed, rel=1e-5)
    assert [step["skipped_steps"] for step in steps] == [2] * 4
    assert [step["loss_scale"] for step in steps] == [256] * 4, "1024, halved with each skipped step"
    [skips] = finished.of("skips", 0)
    assert (skips["skipped_steps"], skips["in_a_row"]) == (2, 2)
    assert all(step["grad_norm"] < 100 for step in steps), "the norm of unscaled gradients"


def test_gradients_averaged_by_hand_in_a_closure(ranks, tmp_path):
    finished = ranks(SCRIPTS / "by_hand.py", count=1)
    alone = recipes.run(tmp_path, SCRIPTS / "by_hand.py", ranks=1)
    assert finished.code == alone.code == 0, finished.output + alone.output
    assert_sound(finished, steps=5, count=1)
    for step in finished.of("step", 0):
        assert step["sync_source"] == "collective_wait" and step["sync_s"] > 0
        assert step["loss"] >= 0
    assert finished.of("step", 0)[1]["grad_norm"] > 0


def test_an_exception_is_reported_and_named_as_the_root_cause(torchrun):
    finished = torchrun(SCRIPTS / "fails.py")
    assert finished.code != 0
    [error] = finished.of("error")
    assert (error["rank"], error["type"]) == (1, "ValueError")
    assert error["message"].startswith("the tenth shard is missing")
    assert len(error["message"].encode()) <= 1024 and len(error["traceback"].encode()) <= 4096
    assert "ValueError: the tenth shard is missing" in finished.output.split("Root Cause")[1]


def test_an_exception_is_reported_though_the_script_has_an_excepthook_of_its_own(ranks):
    finished = ranks(SCRIPTS / "fails.py", "--own-hook", count=1)
    [error] = finished.of("error")
    assert (error["rank"], error["type"]) == (0, "ValueError")


def test_children_of_a_rank_say_nothing(ranks):
    finished = ranks(SCRIPTS / "children.py", count=1)
    assert finished.code == 0, finished.output
    pids = {int(rank): int(pid) for rank, pid in re.findall(r"pid of rank (\d): (\d+)", finished.output)}
    assert {(record["rank"], record["pid"]) for record in finished.records} == set(pids.items())
    assert len(finished.of("step")) == 1


def test_a_rank_that_replaces_itself_stays_watched(ranks):
    finished = ranks(SCRIPTS / "exec_again.py", count=1)
    assert_sound(finished, steps=1, count=1)


def test_an_isolated_python_trains_unwatched(ranks):
    finished = ranks(SCRIPTS / "exec_again.py", "again", count=1, flags=["-I"])
    assert (finished.code, finished.records) == (0, []), finished.output


# === what ships ===


def test_the_text_is_what_its_grammar_makes():
    done = subprocess.run(
        [sys.executable, "-c", "import make_text, sys; sys.stdout.write(make_text.text())"],
        cwd=PACKAGE / "recipes" / "ddp", capture_output=True, text=True, check=True,
    )
    assert done.stdout == (PACKAGE / "recipes" / "ddp" / "text.txt").read_text()


def test_only_the_standard_library_and_torch_are_imported():
    imported = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)
    names = {path: set(imported.findall(path.read_text())) - set(sys.stdlib_module_names) for path in INJECT.rglob("*.py")}
    checkpoint = {path for path in names if path.parent.name == "lockstep_checkpoint"}
    assert set().union(*(names[path] for path in names.keys() - checkpoint)) == {"lockstep_probe"}, "torch is imported by the script"
    assert set().union(*(names[path] for path in checkpoint)) == {"torch", "lockstep_checkpoint"}


def test_the_traces_the_rules_are_designed_on_are_whole():
    for name in ("healthy", "lr10", "lr1000", "warmup-spike"):
        lines = (PACKAGE / "tests" / "data" / f"{name}.csv").read_text().splitlines()
        assert lines[0] == "step,loss,grad_norm"
        assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(1, len(lines)))
