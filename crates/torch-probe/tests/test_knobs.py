"""Knobs on the unmodified scripts of `examples/`: what must stay equal is equal, what must change has changed, and each knob has answered.
"""

import json
import re
import sys

import pytest
from conftest import PACKAGE, RANKS, Listener, notes_of
from knob_models import Deep
from knob_models import train as train_model
from knobbed import script, train

EXAMPLES = PACKAGE.parents[1] / "examples"
LOOP = EXAMPLES / "train_loop.py"
TRAINER = EXAMPLES / "train_trainer.py"
ARGS = EXAMPLES / "train_args.py"
SAME = {  # knobs that change how a run trains, and no number of it
    "activation_checkpointing": "block",
    "process_group_timeout_s": "77",
    "num_workers": "1",
    "grad_clip_norm": "1e9",
}


def losses(output):
    return re.findall(r"^.*loss \S+", output, re.MULTILINE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Each example without knobs, with measurement of what autograd keeps."""

    def of(name, work):
        return train(tmp_path_factory.mktemp(name), work, count=RANKS, STEPS="5", LOCKSTEP_MEASURE_SAVED="1")

    return {"loop": of("loop", script(LOOP)), "trainer": of("trainer", script(TRAINER)), "args": of("args", script(ARGS, *SHORT))}


SHORT = ("--epochs=2", "--pictures=48", "--batch-size=8")


@pytest.mark.parametrize(
    ("name", "work", "says"),
    [
        ("loop", script(LOOP), "8 of 8 blocks (Block"),
        ("trainer", script(TRAINER), "6 of 6 blocks (FSDPLayer"),
        ("args", script(ARGS, *SHORT), "9 of 9 blocks (Residual"),
    ],
)
def test_an_example_trains_the_same_with_knobs_that_change_no_number(plain, tmp_path, name, work, says):
    trained = train(tmp_path, work, SAME, RANKS, STEPS="5")
    assert {trained.state(knob) for knob in SAME} == {"applied"}, trained.answers()
    assert says in trained.detail("activation_checkpointing")
    assert losses(trained.result) == losses(plain[name].result) and len(losses(trained.result)) >= 5
    before, after = plain[name].saved(), trained.saved()
    assert len(before) == len(after) == 3
    assert max(after) < 0.5 * min(before), "more than half of what was kept for the backward pass is not kept"


def test_a_launched_example_is_changed_from_its_first_import_on(torchrun):
    knobs = {**SAME, "grad_clip_norm": "0.25", "lr_scale": "0.5"}
    finished = torchrun(LOOP, environ={"LOCKSTEP_KNOBS": json.dumps(knobs), "STEPS": "5"})
    assert finished.code == 0, finished.output
    for rank in range(RANKS):
        answers = {record["name"]: (record["state"], record["detail"]) for record in finished.of("knob", rank)}
        assert {name: state for name, (state, _) in answers.items()} == dict.fromkeys(knobs, "applied"), answers
        assert "8 of 8 blocks" in answers["activation_checkpointing"][1]
        assert [record["step"] for record in finished.of("step", rank) if record.get("saved_tensor_bytes")] == [2, 3, 4]
        assert [note for record in finished.of("bye", rank) for note in notes_of(record)] == []
    said = [float(loss) for loss in re.findall(r" loss (\S+)", finished.output)]
    assert len(said) == 5 and said[-1] < said[0]
    assert max(finished.sizes) <= 8192


# === the panel ===


def test_without_the_variable_nothing_of_the_knobs_is_there(knobbed):
    def work():
        train_model(Deep(), steps=1)
        return [name for name in sys.modules if name.startswith("lockstep_probe.knobs")]

    trained = knobbed(work)
    assert (trained.result, trained.answers(), trained.saved()) == ([], {}, [])


@pytest.mark.parametrize("text", ["[1, 2]", "block", json.dumps({str(i): "1" for i in range(40)})])
def test_a_variable_that_cannot_be_read_is_a_note(knobbed, text):
    trained = knobbed(lambda: train_model(Deep(), steps=1), LOCKSTEP_KNOBS=text)
    assert any("LOCKSTEP_KNOBS" in note for note in trained.listener.of("bye")[0]["notes"])
    assert trained.answers() == {}


class Probe:
    """The part of a probe that a panel uses."""

    torch = object()

    def __init__(self, path):
        from lockstep_probe.channel import Channel

        self.channel = Channel(str(path))

    def say(self, kind, fields):
        return self.channel.send(json.dumps({"kind": kind, "rank": 0, **fields}).encode())


def test_answers_are_given_again_to_an_agent_that_came_back(tmp_path):
    from lockstep_probe.knobs.panel import Panel

    probe = Probe(tmp_path / "socket")
    panel = Panel(probe, {}, json.dumps({"unknown": "1"}))
    panel.answer("amp", "bf16", "failed", "x" * 5000)
    first = listened(tmp_path, panel)
    assert {(r["name"], r["state"], len(r["detail"])) for r in first} >= {("amp", "failed", 2048)} and len(first) == 2
    (tmp_path / "socket").unlink()
    probe.channel.close()
    assert len(listened(tmp_path, panel)) == 2
    panel.answer("amp", "bf16", "failed", "x" * 5000)
    panel.step_ended()


def listened(folder, panel):
    """Returns what the panel reports at the ends of some steps to an agent that starts now."""
    listener = Listener(folder / "socket")
    panel.probe.channel._next_attempt = 0.0
    for _ in range(3):
        panel.step_ended()
    listener.close()
    return listener.records
