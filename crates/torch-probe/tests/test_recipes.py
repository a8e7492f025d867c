"""The recipes that shard, split and save memory: losses fall, resumed losses equal uninterrupted ones, and different variants learn the
same."""

import json
import os
import re
import shutil
import signal
import sys
import time

import forked
import pytest
import recipes
import torch
from conftest import PACKAGE, RANKS

import lockstep_checkpoint

SMALL = ("--layers=2", "--width=32", "--context=16", "--batch-size=8", "--log-every=1", "--steps=12", "--warmup=2", "--lr=0.01")
SAVING = ("--checkpoint-dir=saved", "--checkpoint-every=6", "--validate-every=6")
QUICK = (*SMALL, "--compare-steps=0")


def check(run):
    assert run.code == 0, run.output
    assert sorted(run.losses) == list(range(1, 13)), run.output
    assert run.values[-1] < run.values[0] - 0.7, run.output
    return run


def check_resumed(folder, recipe, whole, *arguments, ranks=2):
    """Resumes from the checkpoint in the middle of `whole`, in a separate folder."""
    middle = folder / "saved" / "step-000006"
    rest = recipes.run(folder / "rest", recipe, *arguments, ranks=ranks, resume_from=middle)
    assert rest.code == 0, rest.output
    assert rest.resumed == [(str(middle), "6", "exactly")]
    assert rest.losses == {step: whole.losses[step] for step in range(7, 13)}
    last = "^step 12 validation loss .*"
    assert re.findall(last, rest.output, re.MULTILINE) == re.findall(last, whole.output, re.MULTILINE) != []


def check_shards(folder, ranks):
    """The checkpoint is complete, with epoch and validation loss, and each rank's share is in that rank's own file."""
    path = folder / "saved" / "step-000012"
    assert lockstep_checkpoint.problem(path) is None
    said = json.loads((path / "lockstep.json").read_text())
    assert (said["step"], said["epoch"], said["content"], said["world_size"]) == (12, 0, "full", ranks) and 0 < said["val_loss"] < 4
    assert (folder / "saved" / "latest").read_text() == "step-000012\n"
    files = json.loads((path / "contents.json").read_text())["files"]
    shards = [name for name, entry in files.items() for item in entry["items"] if item[0] == "optimizer.state.embed.weight.exp_avg"]
    assert len(shards) == len({re.match(r"__(\d+)_", name).group(1) for name in shards}) > 1
    return path


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    return folder, check(recipes.run(folder, "fsdp", *SMALL, *SAVING, "--compare-steps=2", ranks=4))


def test_fsdp_holds_a_share_of_what_ddp_holds_learns_the_same_and_resumes_exactly(fsdp):
    folder, whole = fsdp
    memory = {name: dict(zip(words[::2], map(int, words[1::2]))) for name, words in memory_lines(whole)}
    ddp, sharded = memory["ddp"], memory["fsdp full"]
    assert ddp["parameters"] == ddp["gradients"] and ddp["optimizer"] > 2 * ddp["parameters"]
    assert 0.25 <= sharded["total"] / ddp["total"] < 0.27, "a quarter, and what does not divide by four"
    assert 0 < sharded["gathered"] < ddp["parameters"] / 2, "blocks are freed, the rest stays"
    of_ddp, of_fsdp = ([float(loss) for loss in line.split()] for line in re.findall(r"^losses \S.*: (.*)", whole.output, re.MULTILINE))
    assert of_fsdp == pytest.approx(of_ddp, abs=1e-4) and len(of_ddp) == 2
    check_shards(folder, ranks=4)
    check_resumed(folder, "fsdp", whole, *QUICK, *SAVING, ranks=4)


def memory_lines(run):
    return [(name, words.split()) for name, words in re.findall(r"^memory (.*): (parameters .*)", run.output, re.MULTILINE)]


def test_fsdp_goes_on_with_other_ranks_and_refuses_a_checkpoint_that_lacks_a_part(fsdp, tmp_path):
    shutil.copytree(fsdp[0] / "saved", tmp_path / "saved")
    path = tmp_path / "saved" / "step-000012"
    fewer = recipes.run(tmp_path, "fsdp", *QUICK, f"--checkpoint-dir={path.parent}", "--resume=latest", "--steps=14", ranks=2)
    assert fewer.code == 0 and fewer.resumed == [(str(path), "12", "with new random numbers: other ranks saved it")], fewer.output
    assert fewer.values[0] < fsdp[1].values[0] - 0.7, "what it had learnt is there"
    (path / "__3_10.distcp").unlink()
    torn = recipes.run(tmp_path, "fsdp", *QUICK, f"--resume={path}")
    assert torn.code == 1 and f"cannot go on from {path}: __3_10.distcp is missing" in torn.output
    other = recipes.run(tmp_path, "fsdp", *QUICK, "--width=48", f"--resume={tmp_path / 'saved' / 'step-000006'}")
    assert other.code == 1 and "does it hold a model of another size?" in other.output


def test_a_stop_ends_all_ranks_after_the_same_step_with_a_checkpoint_of_it(tmp_path):
    def stop(processes):
        deadline = time.monotonic() + recipes.DEADLINE_S
        while "step 2 loss" not in (tmp_path / "output-0").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for process in processes:
            os.kill(process, signal.SIGTERM)

    saving = (f"--checkpoint-dir={tmp_path / 'saved'}", "--checkpoint-every=1000", "--step-delay-ms=50")
    stopped = recipes.run(tmp_path, "fsdp", *QUICK, "--steps=1000", *saving, meanwhile=stop)
    last = max(stopped.losses)
    assert stopped.code == 143 and f"stopped after step {last}, as asked for" in stopped.output, stopped.output
    assert lockstep_checkpoint.newest(tmp_path / "saved") == str(tmp_path / "saved" / f"step-{last:06d}")


def test_an_average_is_a_sum_and_a_division_where_gloo_has_none(tmp_path):
    def work(rank):
        sys.path.insert(0, str(recipes.RECIPES))
        import torch.distributed as dist
        from foundation import sharding

        def sums_alone(collective):
            def original(*args, op, **kwargs):
                if op != dist.ReduceOp.SUM:
                    raise RuntimeError("Cannot use ReduceOp.AVG with Gloo")
                return collective(*args, op=op, **kwargs)

            return original

        for name in ("all_reduce", "reduce_scatter_tensor"):
            setattr(dist, name, sums_alone(getattr(dist, name)))
        assert not sharding.gloo_averages()
        sharding.average_by_sum()
        assert sharding.gloo_averages()
        whole, part = torch.tensor([rank + 1.0, 10 * rank]), torch.zeros(1)
        dist.reduce_scatter_tensor(output=part, input=whole, group=None, op=dist.ReduceOp.AVG)
        assert part.tolist() == [[1.5], [5.0]][rank]
        dist.all_reduce(whole, group=None, op=dist.ReduceOp.AVG)
        assert whole.tolist() == [1.5, 5.0]
        dist.all_reduce(whole)
        assert whole.tolist() == [3.0, 10.0]

    assert forked.ranks(2, work, tmp_path) == [0, 0]


def test_hsdp_learns_what_fsdp_does_and_resumes_exactly(fsdp, tmp_path):
    whole = check(recipes.run(tmp_path, "hsdp", *SMALL, *SAVING, ranks=4))
    assert "mesh replicate=2 x shard=2: ranks [[0, 1], [2, 3]]" in whole.output
    assert whole.values == pytest.approx(fsdp[1].values, abs=2e-3)
    held, of = map(int, re.search(r"rank 0 holds (\d+) bytes of (\d+) bytes", whole.output).groups())
    assert 0.5 <= held / of < 0.52
    check_shards(tmp_path, ranks=4)
    check_resumed(tmp_path, "hsdp", whole, *SMALL, *SAVING, ranks=4)


def test_device_mesh_learns_what_data_parallel_ranks_alone_do_and_resumes_exactly(tmp_path):
    """The same as `grad-op`: two ranks with data, with and without another two that share their work."""
    small = (*SMALL, "--layers=1")
    whole = check(recipes.run(tmp_path, "device-mesh", *small, *SAVING, ranks=4))
    assert "mesh data=2 x tensor=2: ranks [[0, 1], [2, 3]]" in whole.output
    alone = check(recipes.run(tmp_path / "alone", "fsdp", *small, "--compare-steps=1", "--sharding=grad-op"))
    assert whole.values == pytest.approx(alone.values, abs=2e-3)
    [(_, ddp), (name, words)] = memory_lines(alone)
    assert (name, words[-1]) == ("fsdp grad-op", ddp[1]), "all parameters stay gathered"
    check_shards(tmp_path, ranks=4)
    check_resumed(tmp_path, "device-mesh", whole, *small, *SAVING, ranks=4)


def test_bf16_under_fsdp_learns_what_float32_does(fsdp, tmp_path):
    half = check(recipes.run(tmp_path, "fsdp", *QUICK, "--mixed-precision=bf16", ranks=4))
    assert half.values == pytest.approx(fsdp[1].values, abs=0.05) and half.values[0] != fsdp[1].values[0]


def test_amp_in_fp16_skips_what_overflows_learns_what_float32_does_and_resumes_exactly_with_its_scale(tmp_path):
    arguments = (*SMALL, *SAVING, "--precision=fp16", "--grad-clip=1", "--initial-scale=2e6")
    whole = check(recipes.run(tmp_path, "amp", *arguments, "--compare-steps=3"))
    skipped = [int(step) for step in re.findall(r"^step (\d+) skipped: its gradients overflowed", whole.output, re.MULTILINE)]
    assert skipped == list(range(1, len(skipped) + 1)) and 0 < len(skipped) < 6
    float32, fp16 = ([float(loss) for loss in line.split()] for line in re.findall(r"^losses \S+: (.*)", whole.output, re.MULTILINE))
    assert fp16[0] == pytest.approx(float32[0], abs=5e-3)
    saved = dict(re.findall(r"^costs (\S+): saved for backward (\d+) bytes", whole.output, re.MULTILINE))
    assert int(saved["fp16"]) < int(saved["float32"])
    check_resumed(tmp_path, "amp", whole, *arguments, "--compare-steps=0")
    [rounding] = re.findall(r"^step 12 validation loss in float32 \S+, (\S+) in fp16", whole.output, re.MULTILINE)
    assert 0 < abs(float(rounding)) < 0.01


def test_activation_checkpointing_saves_memory_and_changes_no_loss(tmp_path):
    """Under DDP, with dropout and bf16 autocast."""
    common = (*SMALL, "--layers=4", "--dropout=0.2", "--autocast=bf16")
    without = check(recipes.run(tmp_path, "activation-checkpointing", *common, *SAVING, "--granularity=none"))
    saved = {}
    for granularity in ("block", "every=2", "sequential=2"):
        having = check(recipes.run(tmp_path / granularity, "activation-checkpointing", *common, f"--granularity={granularity}", "--compare-steps=2"))
        assert having.losses == without.losses
        assert "losses with and without: the same" in having.output
        saved["none"], saved[granularity] = (int(found) for found in re.findall(r"saved for backward (\d+) bytes", having.output))
        memory, time, worth = re.search(r"^verdict: memory (\S+)%, step time (\S+)%: (.*) \(", having.output, re.MULTILINE).groups()
        assert float(memory) == pytest.approx(100 * saved[granularity] / saved["none"] - 100, abs=0.1)
        assert worth == ("worth it" if float(memory) < -50 and float(time) < 30 else "not worth it")
    assert saved["block"] < saved["none"] / 2 and saved["block"] < saved["every=2"] < saved["none"]
    assert saved["block"] < saved["sequential=2"] < saved["none"]
    check_resumed(tmp_path, "activation-checkpointing", without, *common, *SAVING, "--compare-steps=0")


@pytest.mark.parametrize(
    ("recipe", "argument", "words"),
    [
        ("fsdp", "--sharding=none", "argument --sharding: invalid choice: 'none'"),
        ("fsdp", "--lr=-1", "argument --lr: -1 is not above zero"),
        ("fsdp", "--width=20", "argument --width: 20 cannot be split into attention heads: give a multiple of 16"),
        ("hsdp", "--shards=3", "2 ranks cannot be put into rows of 3: choose a number that divides 2"),
        ("device-mesh", "--width=48", "3 attention heads cannot be dealt out to 2 ranks: change --width or --tensor-parallel"),
        ("device-mesh", "--batch-size=10000", "the text is too short for this batch size"),
        ("amp", "--precision=fp8", "argument --precision: invalid choice: 'fp8'"),
        ("activation-checkpointing", "--granularity=every", "'every' is none of none, block, every=N or sequential=N"),
        ("activation-checkpointing", "--granularity=every=9", "every=9: there are 4 blocks, so N is 1 to 4"),
        ("activation-checkpointing", "--granularity=sequential=1", "one piece alone would not be checkpointed"),
        ("activation-checkpointing", "--compare-steps=1", "give 2 or more, or 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(tmp_path, recipe, argument, words):
    run = recipes.run(tmp_path, recipe, argument)
    assert run.code in (1, 2) and words in run.output and "Traceback" not in run.output


def test_every_recipe_teaches_in_its_help(tmp_path):
    for recipe in recipes.with_shared_arguments():
        run = recipes.run(tmp_path, recipe, "--help", ranks=1)
        assert run.code == 0 and "example: torchrun" in run.output and "--resume PATH|latest" in run.output


def test_under_torchrun_and_the_probe_only_the_run_s_own_steps_are_counted(fsdp, torchrun):
    """Not the steps of the comparison before it, nor the empty one that creates an optimizer's state for loading. The mesh is reported."""
    start = fsdp[0] / "saved" / "step-000006"
    arguments = (*SMALL, "--compare-steps=2", "--checkpoint-dir=saved", f"--resume={start}")
    end = torchrun(PACKAGE / "recipes" / "fsdp" / "main.py", *arguments, timeout_s=recipes.DEADLINE_S)
    assert end.code == 0, end.output
    for rank in range(RANKS):
        assert [record["step"] for record in end.of("step", rank)] == list(range(1, 7)), end.output
        [mesh] = end.of("mesh", rank)
        assert (mesh["axes"], mesh["sizes"], mesh["coordinates"]) == (["shard"], [RANKS], [rank])
        saves = end.of("checkpoint", rank)
        assert [(record["phase"], record["format"], os.path.basename(record["path"])) for record in saves][-1] == ("end", "dcp", "step-000012")
    losses = dict(re.findall(r"^step (\d+) loss (\S+)", end.output, re.MULTILINE))
    assert [float(f"{record['loss']:.9g}") for record in end.of("step", 0)] == [float(losses[str(step)]) for step in range(7, 13)]
