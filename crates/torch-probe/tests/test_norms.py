"""Gradient norms of sharded models: the parts of the ranks add up to the true norm, replicas counted once."""

import importlib.metadata
import re

import pytest
from conftest import SCRIPTS
from knobbed import script


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1"])
def test_the_squares_of_all_ranks_add_up_to_the_true_norm(ranks, kind):
    finished = ranks(SCRIPTS / "shards.py", kind, count=2)
    assert finished.code == 0, finished.output
    check(kind, 2, finished.output, finished.of("step"))


def test_replicas_are_counted_once(knobbed):
    """The four ranks are forked, because each would import torch on the two cores of a small machine."""
    if tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 8):
        pytest.skip("before torch 2.8 FSDP2 does not replicate on CPUs")
    trained = knobbed(script(SCRIPTS / "shards.py", "hsdp"), count=4)
    check("hsdp", 4, trained.result, trained.listener.of("step"))


def check(kind, count, output, steps):
    true = {int(step): float(norm) for step, norm in re.findall(r"step=(\d+) norm=(\S+)", output)}
    squares = {}
    for record in steps:
        assert "grad_norm" not in record and (kind != "fsdp1" or "grad_norm_own" not in record)
        if "grad_norm_local_sq" in record:
            squares.setdefault(record["step"], []).append(record["grad_norm_local_sq"])
    whole = {step: sum(parts) ** 0.5 for step, parts in squares.items() if len(parts) == count}
    assert {1, 4, 5, 6} <= whole.keys(), "the first, and all that were clipped"
    assert whole == pytest.approx({step: true[step] for step in whole}, rel=1e-5)


def test_a_norm_that_the_model_computes_over_all_ranks_is_global(ranks):
    finished = ranks(SCRIPTS / "shards.py", "fsdp1", "--own-clip")
    assert finished.code == 0, finished.output
    true = {int(step): float(norm) for step, norm in re.findall(r"step=(\d+) norm=(\S+)", finished.output)}
    clipped = [record for record in finished.of("step") if record["step"] > 3]
    assert len(clipped) == 6
    assert all(record["grad_norm"] == pytest.approx(true[record["step"]], rel=1e-5) for record in clipped)
    assert all("grad_norm_local_sq" not in record for record in clipped)
