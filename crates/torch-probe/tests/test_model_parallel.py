"""The recipe `model-parallel` on real ranks: both schedules learn the same, checkpoints of stages, a bubble, and a stage that fails."""

import json
import re

import pytest
import torch
from conftest import PACKAGE
from recipe_modules import imported, refusal

NAME = "model-parallel"
RECIPE = PACKAGE / "recipes" / NAME / "main.py"
SMALL = ("--log-every=1", "--blocks=3", "--batch-size=32", "--microbatches=4", "--steps=30", "--lr=4e-3")


def losses(output):
    return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)", output, re.MULTILINE)}


def test_it_learns_and_goes_on_exactly_with_the_other_schedule(ranks, tmp_path):
    whole = ranks(RECIPE, *SMALL, "--checkpoint-every=15", f"--checkpoint-dir={tmp_path}", count=3)
    assert whole.code == 0, whole.output
    printed = losses(whole.output)
    assert sorted(printed) == list(range(1, 31)) and float(printed[30]) < float(printed[1]) - 0.3
    for rank in range(3):
        records = whole.of("step", rank)
        assert [record["step"] for record in records] == list(range(1, 31))
        bubbles = [record["train_pipeline_bubble_ratio"] for record in records[1:]]
        assert all(0 < bubble < 1 for bubble in bubbles) and "train_pipeline_bubble_ratio" not in records[0]
        assert all(record["samples"] == 32 for record in records)
    assert [record["loss"] for record in whole.of("step", 2)] == pytest.approx([float(printed[step]) for step in range(1, 31)], rel=1e-5)
    assert re.search(r"^bubble by stage: measured 0\.\d+ 0\.\d+ 0\.\d+, at best 0\.333$", whole.output, re.MULTILINE)
    said = json.loads((tmp_path / "step-000015" / "lockstep.json").read_text())
    assert (said["step"], said["content"], said["world_size"]) == (15, "full", 3)

    rest = ranks(RECIPE, *SMALL, "--schedule=gpipe", f"--resume={tmp_path / 'step-000015'}", count=3)
    assert rest.code == 0, rest.output
    assert losses(rest.output) == {step: printed[step] for step in range(16, 31)}


def test_a_stage_that_fails_ends_all_of_them_and_is_named(ranks):
    fault = ("--fail-at-step=3", "--fail-rank=1", "--fail-attempts=9")
    run = ranks(RECIPE, *SMALL, "--steps=100000", "--timeout-s=120", *fault, count=3)
    assert run.code != 0
    assert "DeliberateFault: rank 1 fails at step 3, as asked for" in run.output
    ended_s = {record["rank"]: record["mono_ns"] * 1e-9 for record in run.of("error")}
    assert sorted(ended_s) == [0, 1, 2]
    assert max(ended_s.values()) - ended_s[1] < 60, "its neighbours did not wait for the time-out"


def test_every_block_is_of_one_stage_and_its_weights_do_not_depend_on_the_cut():
    with imported(NAME, "network") as [network]:
        whole = network.layers(blocks=7, width=8, classes=4, seed=1)
        for stages in (2, 3, 5, 7):
            cut = [network.cut(whole, stage, stages) for stage in range(stages)]
            assert [name for part in cut for name, _ in part] == [name for name, _ in whole]
            assert all(part for part in cut)
        flowing = torch.randn(2, 1, 16, 16)
        at_once = network.sequence(whole)(flowing)
        for part in cut:
            flowing = network.sequence(part)(flowing)
        assert torch.equal(flowing, at_once)


@pytest.mark.parametrize(
    "arguments, ranks, said",
    [
        ([], 1, "a pipeline needs two stages or more, each a rank: torchrun --nproc-per-node 2 or more"),
        (["--blocks=3"], 4, "3 blocks cannot be shared out to 4 ranks: raise --blocks to 4, or start fewer ranks"),
        (["--microbatches=7"], 4, "--batch-size 64 cannot be cut into 7 equal --microbatches"),
        (["--microbatches=2"], 4, "1f1b keeps 4 stages busy with 4 micro-batches or more: raise --microbatches, or take --schedule gpipe"),
        (["--width=10"], 4, "--width 10 is no multiple of 4: its channels are normalised in 4 groups"),
    ],
)
def test_what_cannot_work_is_refused_in_words(monkeypatch, capsys, arguments, ranks, said):
    assert refusal(NAME, monkeypatch, capsys, *arguments, ranks=ranks) == f"main.py: error: {said}"
