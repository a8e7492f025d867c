"""Measures the reference values of `lockstep plan memory` again, with the installed PyTorch.

The planner's own tests (crates/domain/src/plan/tests.rs) compare its formulas with the same file. No GPU takes part: states and peaks
are PyTorch's own allocations of tensors, on the CPU, on the meta device, or with fake CUDA tensors (plan_model.py says which).
"""

import json

import measure_plan
import plan_model
import pytest

STORED = {case["name"]: case for case in json.loads(measure_plan.DATA.read_text())}
SLOW = ("llama3-8b block", "peak gated 1b", "peak gpt2", "fsdp over 3", "fsdp over 8")  # seconds each; measured when the file is made
CASES = [case for case in measure_plan.cases() if case[0] not in SLOW]


def test_the_file_holds_the_cases_that_are_measured():
    assert {name: case["settings"] for name, case in STORED.items()} == {name: settings for name, settings, _ in measure_plan.cases()}


@pytest.mark.parametrize(("name", "settings", "how"), CASES, ids=[case[0] for case in CASES])
def test_pytorch_still_keeps_what_was_measured(name, settings, how):
    measured, stored = measure_plan.measure(settings, how), STORED[name]["measured"]
    assert measured.keys() == stored.keys()
    for what, size in stored.items():
        exact = what in ("parameters", "gradients", "optimizer")
        assert measured[what] == (size if exact else pytest.approx(size, rel=0.02)), what


@pytest.mark.parametrize("checkpointing", ["none", "block", "every=2"])
def test_real_tensors_on_a_cpu_are_kept_as_fake_ones(checkpointing):
    settings = {**STORED["gpt fp32 materialised"]["settings"], "checkpointing": checkpointing}
    assert plan_model.saved(settings, plan_model.CPU) == plan_model.saved(settings)


def test_recomputed_blocks_leave_their_inputs_and_nothing_else():
    settings = STORED["gpt block"]["settings"]
    kept, everything = (plan_model.saved({**settings, "checkpointing": how}) for how in ("block", "none"))
    tokens = settings["sequence"] * settings["micro_batch"]
    inputs = settings["model"]["layers"] * tokens * settings["model"]["hidden"] * 2
    ends = kept - inputs
    assert 0 < ends < everything - inputs and kept < everything / 4
