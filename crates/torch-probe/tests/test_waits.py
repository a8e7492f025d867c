"""Exposed waits: in every way to train, a late rank shows as the wait of the other rank, and nowhere else."""

import re
import statistics
import types

import pytest
import recipes
from conftest import SCRIPTS

from lockstep_probe.cycle import Cycle
from lockstep_probe.waits import Sampling, Waits, watch_fsdp2_group, watch_functional, watch_works, watched

STEPS, LATE = 8, (4, 6, 8)
WAYS = ("all_reduce", "asynchronous", "barrier", "pipeline", "tensor_forward", "tensor_backward", "fsdp2_forward", "fsdp2_backward", "ddp", "ddp_buffers")
LATE_RANK = {"ddp_buffers": 0}  # else rank 1
LATE_IN_BACKWARD = {"tensor_backward", "fsdp2_backward"}
LATE_IN_FORWARD = {"pipeline", "tensor_forward", "fsdp2_forward", "ddp", "ddp_buffers"}


@pytest.fixture(scope="module")
def trained(ranks):
    finished = ranks(SCRIPTS / "late_ranks.py")
    assert finished.code == 0, finished.output
    return finished


def part(trained, way, rank, name, default=0.0):
    """The median over the steps in which a rank was late."""
    first = WAYS.index(way) * STEPS
    steps = {record["step"]: record for record in trained.of("step", rank)}
    return statistics.median(steps[first + late].get(name, default) for late in LATE)


@pytest.mark.parametrize("way", WAYS)
def test_a_late_rank_is_the_waiting_of_the_other_and_does_not_wait_itself(trained, way):
    name = "bubble_s" if way == "pipeline" else "sync_s"
    late = LATE_RANK.get(way, 1)
    assert 0.15 <= part(trained, way, 1 - late, name) <= 0.35
    assert part(trained, way, late, name) < 0.1
    if way == "pipeline":
        assert part(trained, way, 0, "sync_s") < 0.1, "a neighbour's work is no wait for all"


@pytest.mark.parametrize("way", WAYS)
def test_waiting_is_counted_once_and_in_no_other_part(trained, way):
    own = ("data_s", "forward_s", "backward_s", "optimizer_s")
    late = LATE_RANK.get(way, 1)
    assert sum(part(trained, way, 1 - late, name) for name in own) < 0.1
    for rank in range(2):
        for record in trained.of("step", rank)[1:]:
            assert sum(record.get(name, 0.0) for name in (*own, "sync_s", "bubble_s")) <= record["step_s"] + 1e-6
    if way in LATE_IN_FORWARD:
        assert part(trained, way, late, "forward_s") > 0.15
    if way in LATE_IN_BACKWARD:
        assert part(trained, way, late, "backward_s") > 0.15


def test_what_waits_is_said(trained):
    sources = {record["sync_source"] for record in trained.of("step", 0)[: STEPS * WAYS.index("ddp")]}
    assert sources == {"collective_wait"}
    assert trained.of("step", 0)[-1]["sync_source"] == "ddp_backward_tail"
    assert not any("waiting" in note for hello in trained.of("hello") for note in hello.get("notes", []))


def test_the_losses_are_those_without_the_probe(trained, tmp_path):
    alone = recipes.run(tmp_path, SCRIPTS / "late_ranks.py")
    assert alone.code == 0, alone.output
    losses = re.compile(r"^way=.*", re.MULTILINE)
    assert sorted(losses.findall(alone.output)) == sorted(losses.findall(trained.output))


# === without torch ===


class Ticking:
    """Every mark is one second later than the one before."""

    device = "cpu"

    def __init__(self):
        self.now = 0.0

    def mark(self):
        self.now += 1.0
        return self.now

    def seconds(self, start, end):
        return end - start

    def usable(self):
        return True

    def stage(self, kept):
        return kept

    read = stage


class Work:
    def __init__(self, kind):
        self.kind = kind

    def _get_op_type(self):
        return self.kind


def probe_of(timeline, synchronises=False):
    import threading

    probe = types.SimpleNamespace(cycle=Cycle(timeline), thread=threading.get_ident(), synchronises=synchronises, notes=[], on=True)
    probe.page = types.SimpleNamespace(begin=lambda phase: None, end=lambda: None)
    probe.call = lambda function, *args: function(*args)
    probe.is_training = lambda: True
    probe.note = probe.notes.append
    probe.waits = Waits(probe)
    probe.waits.is_watching = True
    probe.waits.joined_group(2)
    return probe


def test_a_wait_inside_a_wait_is_a_part_of_it():
    probe = probe_of(Ticking())
    probe.cycle.close()
    probe.waits.step_begins(1, None)
    outer = probe.waits.begin()
    assert outer is not None and probe.waits.begin() is None
    probe.waits.end(outer, Work(1))
    again = probe.waits.begin()
    probe.waits.end(again, Work(13))
    fields = probe.cycle.close().fields()
    assert (fields["sync_s"], fields["bubble_s"]) == (1.0, 1.0)


def test_a_wait_of_a_probe_that_does_not_know_torch_ends_as_without_it():
    probe = probe_of(Ticking())
    probe.torch = None
    assert watched(probe, lambda: "the result")() == "the result"


def test_a_wait_in_another_thread_holds_nobody_up():
    probe = probe_of(Ticking())
    probe.thread = -1
    assert probe.waits.begin() is None


def test_a_wait_in_the_tail_of_a_backward_pass_is_a_part_of_the_tail():
    probe = probe_of(Ticking())
    probe.cycle.close()
    probe.waits.step_begins(1, None)
    probe.cycle.begin_backward()
    probe.cycle.gradients_ready()
    probe.waits.end(probe.waits.begin(), Work(1))
    probe.cycle.end_backward()
    fields = probe.cycle.close().fields()
    assert fields["sync_s"] == 3.0  # all of the tail, once


def test_a_step_without_a_wait_has_waited_for_no_time_if_waits_are_seen():
    probe = probe_of(Ticking())
    probe.waits.step_begins(1, None)
    assert probe.cycle.close().fields()["sync_s"] == 0.0
    for is_watching, ranks in [(True, 1), (False, 2)]:
        probe.waits.is_watching = is_watching
        probe.waits.joined_group(ranks)
        probe.waits.step_begins(2, None)
        assert "sync_s" not in probe.cycle.close().fields()


def test_a_torch_without_the_names_that_are_watched_is_noted():
    probe = probe_of(Ticking())
    probe.waits.is_watching = False
    probe.missing_on_device = []
    bare = types.SimpleNamespace()
    watch_works(probe, bare)
    watch_functional(probe, bare)
    assert [note.split(":")[0] for note in probe.notes] == ["this torch has no Work", "this torch has no wait_tensor"]
    assert not probe.waits.is_watching
    watch_fsdp2_group(probe, bare)
    assert len(probe.missing_on_device) == 2 and len(probe.notes) == 2, "it matters on a GPU only"


def test_on_a_device_waits_are_known_at_steps_that_are_equal_on_all_ranks():
    timeline = Ticking()
    timeline.device = "cuda:0"
    probe = probe_of(timeline)
    known = []
    for number in range(1, 33):
        probe.waits.step_begins(number, 0.05)
        start = probe.waits.begin_on_device()
        if start is not None:
            probe.waits.end(start)
        if "sync_s" in probe.cycle.close().fields():
            known.append(number)
    assert known == [8, 16, 24, 32]
    assert probe_of(Ticking()).waits.begin_on_device() is None, "on a CPU the waits inside are seen one by one"


@pytest.mark.parametrize("synchronises", [True, False])
def test_on_a_device_a_plain_ddp_knows_its_tail_at_every_step(synchronises):
    timeline = Ticking()
    timeline.device = "cuda:0"
    probe = probe_of(timeline, synchronises)
    probe.waits.sampling._every = 4
    probe.waits.step_begins(3, 0.1)
    assert probe.cycle.knows_waits == synchronises


def test_sampled_steps_change_only_when_steps_change_by_much():
    sampling = Sampling()
    seen = []
    for step_s in (0.010, 0.012, 0.014, 0.009, 0.1, 0.3, 2.0, 0.12):
        sampling.follow(step_s)
        seen.append(sampling._every)
    assert seen == [32, 32, 32, 32, 4, 1, 1, 4]
    assert all(every & (every - 1) == 0 for every in seen)
