"""Values that scripts log themselves: their loss, and other values by name."""

import functools
import pathlib
import re
import sys

import pytest
from conftest import SCRIPTS
from knobbed import script, train

LOGGERS = pathlib.Path(__file__).resolve().parent / "loggers"


@pytest.fixture(scope="module")
def logging(tmp_path_factory):
    """logging(name of a logger) -> Trained: one forked rank that uses it. Each logger is used once, for all tests."""

    @functools.cache
    def run(logger):
        trained = train(tmp_path_factory.mktemp(logger), functools.partial(use, logger))
        assert not any("failed inside" in note for note in trained.listener.of("bye", 0)[0].get("notes", []))
        return trained

    return run


def use(logger):
    """Runs the script with the stand-ins for loggers on its path. They are imported after the probe has started."""
    sys.path.insert(0, str(LOGGERS))
    return script(SCRIPTS / "logs.py", logger)()


def values(trained):
    """The last value under each name."""
    return {name: value for record in trained.listener.of("logged") for name, value in record["values"].items()}


@pytest.mark.parametrize(("logger", "name"), [("wandb", "train/loss"), ("tensorboard", "Loss/train"), ("mlflow", "train_loss")])
def test_a_logged_loss_is_preferred_from_the_first_on(logging, logger, name):
    trained = logging(logger)
    said = {int(step): float(loss) for step, loss in re.findall(r"step=(\d+) loss=(\S+)", trained.result)}
    steps = trained.listener.of("step", 0)
    assert [step["loss_source"] for step in steps] == ["backward"] + ["logged"] * 5
    assert steps[0]["loss"] == pytest.approx(said[2] / 16, rel=0.1), "what backward saw, as long as nothing else is known"
    assert {step["step"]: step["loss"] for step in steps[1:] if "loss" in step} == pytest.approx(said, rel=1e-5)
    assert {step["loss_name"] for step in steps if "loss_name" in step} == {name}
    assert all(step["loss_backward"] == pytest.approx(said[step["step"] // 2 * 2] / 16, rel=0.1) for step in steps[1:])


def test_other_values_keep_their_names(logging):
    assert values(logging("wandb")) == {"train.accuracy": 0.6}
    assert values(logging("tensorboard")) == {"lr/body": pytest.approx(0.06), "lr/head": "NaN"}


def test_hostile_names_are_refused_and_too_many_are_cut_off(logging):
    trained = logging("mlflow")
    seen = values(trained)
    assert len(seen) == 64 and seen["val/acc"] == pytest.approx(0.6) and seen["many-62"] == 62
    notes = trained.listener.of("bye", 0)[0]["notes"]
    assert any("more than 64 names" in note for note in notes) and any("control characters" in note for note in notes)
    assert max(trained.listener.sizes) <= 8192


def test_a_script_without_a_logger_says_nothing(logging):
    trained = logging("none")
    assert trained.listener.of("logged") == []
    assert {step["loss_source"] for step in trained.listener.of("step", 0)} == {"backward"}
