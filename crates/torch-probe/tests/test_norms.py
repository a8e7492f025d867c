"""Gradient norms of sharded models: the parts of the ranks add up to the true norm, replicas counted once."""

import importlib.metadata
import re

import pytest
from conftest import SCRIPTS


@pytest.mark.parametrize(("kind", "count"), [("fsdp2", 2), ("hsdp", 4), ("fsdp1", 2)])
def test_the_squares_of_all_ranks_add_up_to_the_true_norm(ranks, kind, count):
    if kind == "hsdp" and tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 8):
        pytest.skip("before torch 2.8 FSDP2 does not replicate on CPUs")
    finished = ranks(SCRIPTS / "shards.py", kind, count=count)
    assert finished.code == 0, finished.output
    true = {int(step): float(norm) for step, norm in re.findall(r"step=(\d+) norm=(\S+)", finished.output)}
    squares = {}
    for record in finished.of("step"):
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
