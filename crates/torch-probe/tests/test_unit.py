"""The parts that need no training run: gating, chaining, datagrams, import hooks, the arithmetic of a step."""

import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
import types

import pytest
from conftest import INJECT, TIMEOUT_S, Listener, rank_environment

from lockstep_probe import errors, gate, hooks, inputs, loggers, optimizing, record
from lockstep_probe.channel import Channel
from lockstep_probe.cycle import Cycle
from lockstep_probe.leader import IDLE_STEPS_MAX, Leader
from lockstep_probe.norms import Budget
from lockstep_probe.probe import BURST_MAX, DEVICE_CHANGES_MAX, PENDING_MAX, Probe
from lockstep_probe.timeline import CudaTimeline

WORKER = {"LOCKSTEP_PROBE_SOCKET": "/s", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}


# === gate ===


def test_a_direct_worker_is_watched_and_signs_its_environment():
    environ = dict(WORKER)
    assert gate.may_watch(environ)
    assert environ[gate.SIGNATURE] == str(os.getpid())
    assert gate.may_watch(environ), "the same process again, as after exec"


@pytest.mark.parametrize("missing", sorted(WORKER))
def test_what_is_no_worker_of_torchrun_is_left_alone(missing):
    environ = {key: value for key, value in WORKER.items() if key != missing}
    assert not gate.may_watch(environ)
    assert gate.SIGNATURE not in environ, "or torchrun's own environment would silence its workers"


def test_a_child_of_a_worker_is_left_alone():
    assert not gate.may_watch({**WORKER, gate.SIGNATURE: "1"})


def test_the_switch_turns_it_off():
    assert not gate.may_watch({**WORKER, "LOCKSTEP_PROBE": "off"})


# === sitecustomize ===


def python(code, *paths, environ=(), flags=()):
    env = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
    env.update(environ, PYTHONPATH=os.pathsep.join(map(str, paths)))
    return subprocess.run([sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_the_next_sitecustomize_still_runs_and_keeps_its_name(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.chained = __file__\n")
    done = python("import sitecustomize; print(chained, sitecustomize.__file__)", INJECT, tmp_path)
    own = str(tmp_path / "sitecustomize.py")
    assert done.stdout.split() == [own, own], done.stderr


def test_a_failing_next_sitecustomize_fails_as_it_would_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('broken')\n")
    alone = python("print('goes on')", tmp_path)
    chained = python("print('goes on')", INJECT, tmp_path)
    assert chained.stdout == alone.stdout == "goes on\n"
    assert "broken" in alone.stderr and "broken" in chained.stderr


def test_nothing_is_imported_outside_a_rank():
    done = python("import sys; print([name for name in sys.modules if 'lockstep' in name])", INJECT)
    assert done.stdout == "[]\n", done.stderr


def test_a_broken_probe_does_not_stop_the_script(tmp_path):
    (tmp_path / "lockstep_probe").mkdir()
    (tmp_path / "lockstep_probe" / "__init__.py").write_text("raise RuntimeError('broken probe')\n")
    done = python("print('trains')", tmp_path, INJECT, environ=WORKER)
    assert (done.stdout, done.stderr) == ("trains\n", "")


# === records ===


def envelope():
    return record.Envelope({**WORKER, "LOCKSTEP_RUN": "r", "LOCKSTEP_ATTEMPT": "7", "RANK": "3"})


def test_numbers_json_cannot_say_travel_as_strings():
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5, "unknown": None}
    sealed = json.loads(envelope().seal("step", values))
    assert (sealed["a"], sealed["b"], sealed["c"], sealed["d"]) == ("NaN", "+Inf", "-Inf", 1.5)
    assert "unknown" not in sealed


def test_every_record_has_the_common_fields():
    before = (time.time_ns(), time.monotonic_ns())
    sealed = json.loads(envelope().seal("step", {}))
    after = (time.time_ns(), time.monotonic_ns())
    assert {key: sealed[key] for key in ("v", "kind", "run", "attempt", "rank", "local_rank", "pid")} == {
        "v": 1, "kind": "step", "run": "r", "attempt": 7, "rank": 3, "local_rank": 0, "pid": os.getpid(),
    }
    assert before[0] <= sealed["wall_ns"] <= after[0] and before[1] <= sealed["mono_ns"] <= after[1]


def test_only_the_error_lines_of_tracebacks_in_a_message_are_kept():
    message = (
        "CheckpointException ranks:dict_keys([0, 1])\n"
        "Traceback (most recent call last): (RANK 0)\n"
        '  File "filesystem.py", line 710, in write_data\n    return self._write_data(planner)\n           ^^^^^^^^^^^\n'
        "OSError: [Errno 28] No space left on device\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last): (RANK 1)\n  File \"filesystem.py\", line 710, in write_data\n"
        "OSError: [Errno 28] No space left on device\n"
    )
    told = errors.error_fields(ValueError, message, "")["message"]
    assert told == "CheckpointException ranks:dict_keys([0, 1]): OSError: [Errno 28] No space left on device"
    several = "two lines\n\nof a person's own"
    assert errors.error_fields(ValueError, several, "")["message"] == several



@pytest.mark.parametrize("character", ['"', "\n", "\x1b", "é", "\ud800", "x"])
def test_error_fields_of_any_characters_fit_a_datagram(character):
    fields = errors.error_fields(ValueError, character * 9000, character * 90000)
    assert len(envelope().seal("error", fields)) <= record.LIMIT


# === channel ===


def test_a_full_queue_drops_and_counts_without_waiting(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody_reads:
        nobody_reads.bind(path)
        channel = Channel(path)
        results, took = [], []
        for _ in range(2000):
            start = time.perf_counter()
            results.append(channel.send(b"x" * 4000))
            took.append(time.perf_counter() - start)
        assert statistics.median(took) < 0.0005
        assert results[0] and not results[-1]
        assert channel.dropped == results.count(False) > 0
        for _ in range(results.count(True)):
            nobody_reads.recv(8192)
        assert channel.send(b"room again")


def test_no_agent_is_no_error(tmp_path):
    channel = Channel(str(tmp_path / "nobody"))
    assert [channel.send(b"x") for _ in range(3)] == [False] * 3
    assert channel.dropped == 3


def test_a_restarted_agent_is_found_again(tmp_path):
    path = str(tmp_path / "socket")
    first = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    first.bind(path)
    channel = Channel(path)
    assert channel.send(b"1")
    first.close()
    os.unlink(path)
    assert not channel.send(b"2")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.bind(path)
        second.settimeout(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while not channel.send(b"3") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert second.recv(10) == b"3"
        assert channel.connections == 2


def test_a_path_longer_than_sun_path_connects(tmp_path):
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    handle = os.open(folder, os.O_PATH)
    listening.bind(f"/proc/self/fd/{handle}/s")
    os.close(handle)
    assert Channel(str(folder / "s")).send(b"far")
    assert listening.recv(10) == b"far"
    listening.close()


# === imports ===

IMPORTS = """
import sys; sys.path.insert(0, {folder!r})
from lockstep_probe.imports import AfterImport
seen, faults = [], []
def broken(module): raise RuntimeError("callback")
AfterImport({{"one": lambda m: seen.append((m.__name__, m.VALUE)), "two": broken, "missing": seen.append}}, faults.append).install()
import one, two, inspect
try: import missing
except ModuleNotFoundError: pass
print(seen, len(faults), inspect.getsource(one).strip(), type(one.__loader__).__name__, one.__spec__.loader is one.__loader__)
"""


def test_callbacks_run_once_a_module_is_complete_and_leave_no_trace(tmp_path):
    (tmp_path / "one.py").write_text("VALUE = 1\n")
    (tmp_path / "two.py").write_text("")
    done = python(IMPORTS.format(folder=str(tmp_path)), INJECT)
    assert done.stdout == "[('one', 1)] 1 VALUE = 1 SourceFileLoader True\n", done.stderr


LOOKUPS = """
import importlib.util, sys; sys.path.insert(0, {folder!r})
from lockstep_probe.imports import AfterImport
seen = []
class Asking:  # a finder that asks all finders again
    def find_spec(self, name, path=None, target=None):
        return None if name != "one" or name in asked else asked.append(name) or importlib.util.find_spec(name)
asked = []
AfterImport({{"one": lambda m: seen.append("inner")}}, print).install()
sys.meta_path.insert(0, Asking())
AfterImport({{"one": lambda m: seen.append("outer")}}, print).install()
found = [importlib.util.find_spec("one") is not None for _ in range(2)]
try: import one
except ImportError: seen.append("failed")
sys.fail = False
import one
importlib.reload(one)
print(found, seen, type(one.__loader__).__name__)
"""


def test_a_module_is_seen_although_it_was_looked_up_or_failed_before_its_import(tmp_path):
    """Libraries look up torch, to find out whether it is installed, before anything imports it."""
    (tmp_path / "one.py").write_text("import sys\nif getattr(sys, 'fail', True): raise ImportError\n")
    done = python(LOOKUPS.format(folder=str(tmp_path)), INJECT)
    assert done.stdout == "[True, True] ['failed', 'inner', 'outer'] SourceFileLoader\n", done.stderr


def test_the_page_is_written_after_each_import_of_a_watched_module():
    class Recorder:
        calls = []

        def call(self, function, *args):
            return function(*args)

        def torch_imported(self, torch):
            self.calls.append(torch)

        def module_imported(self):
            self.calls.append("the page")

    hooks.after_import(Recorder())["torch"]("torch")
    assert Recorder.calls == ["torch", "the page"]


def test_losses_of_an_iterator_reach_torch_all():
    autograd = types.SimpleNamespace(backward=lambda tensors: tuple(tensors))
    probe = types.SimpleNamespace(call=lambda function, *args: function(*args), stop=types.SimpleNamespace(due=False))
    probe.begin_backward, probe.end_backward = lambda tensors: next(iter(tensors)), lambda handle, failed: None
    hooks.watch_backward(probe, autograd)
    assert autograd.backward(iter(["a loss", "another"])) == ("a loss", "another")


# === the arithmetic of a step ===


class ScriptedTimeline:
    """Marks are seconds, taken from a list."""

    device = "cpu"

    def __init__(self, *marks):
        self.marks = list(marks)

    def mark(self):
        return self.marks.pop(0)

    def seconds(self, start, end):
        return end - start

    def stage(self, kept):
        return kept

    read = stage


def first_step_ends_at(cycle, mark):
    cycle.timeline.marks = [mark, mark]
    cycle.close()


def test_a_step_is_split_into_parts_that_do_not_overlap():
    cycle = Cycle(ScriptedTimeline())
    first_step_ends_at(cycle, 10.0)
    cycle.timeline.marks = [16.0, 18.0, 19.0, 20.0, 21.0, 22.0, 22.0]
    cycle.fetched(11.0, 13.0, (8, 512), counts=True)
    cycle.begin_backward()
    cycle.gradients_ready()
    cycle.end_backward()
    cycle.losses, cycle.norms = [2.0], [0.5]
    cycle.begin_optimizer()
    cycle.end_optimizer()
    assert cycle.close().fields() == {
        "step_s": 12.0, "data_s": 2.0, "forward_s": 3.0, "backward_s": 2.0, "sync_s": 1.0, "optimizer_s": 1.0,
        "sync_source": "ddp_backward_tail", "loss": 2.0, "loss_source": "backward", "grad_norm": 0.5, "samples": 8, "micro_batch": 8, "tokens": 512,
    }


def test_a_step_of_accumulated_gradients_tells_its_samples_and_those_of_one_batch():
    cycle = Cycle(ScriptedTimeline())
    first_step_ends_at(cycle, 0.0)
    cycle.timeline.marks = [float(n) for n in range(1, 12)]
    for batch in [(8, None), (3, None)]:
        cycle.fetched(0.1, 0.2, batch, counts=True)
        cycle.begin_backward()
        cycle.end_backward()
    fields = cycle.close().fields()
    assert (fields["samples"], fields["micro_batch"]) == (11, 8)


def test_a_wait_is_taken_out_of_the_part_it_falls_into():
    cycle = Cycle(ScriptedTimeline())
    first_step_ends_at(cycle, 0.0)
    cycle.knows_waits = True
    before = cycle.aside()
    cycle.waited(0.5, 1.0)
    cycle.fetched(0.0, 2.0, None, counts=True, aside=before)
    cycle.waited(2.0, 3.0)
    cycle.timeline.marks = [5.0, 9.0]
    cycle.begin_backward()
    cycle.waited(6.0, 8.0)
    cycle.end_backward()
    cycle.timeline.marks = [10.0, 14.0, 20.0, 20.0]
    cycle.begin_optimizer()
    cycle.waited(10.0, 13.0, True)
    cycle.end_optimizer()
    cycle.waited(15.0, 16.0)
    fields = cycle.close().fields()
    parts = {name: fields[name + "_s"] for name in ("step", "data", "forward", "backward", "optimizer", "sync", "bubble")}
    assert parts == {"step": 20.0, "data": 1.5, "forward": 2.0, "backward": 2.0, "optimizer": 1.0, "sync": 4.5, "bubble": 3.0}
    assert fields["sync_source"] == "collective_wait"


class Tensors:
    """Replaces torch where only the type of a value matters."""

    class Tensor:
        def __init__(self, value, is_cpu=True):
            self.value, self.is_cpu = value, is_cpu

        def numel(self):
            return 1

        def item(self):
            assert self.is_cpu, "reading it would wait for the device"
            return self.value


class Rated:
    def __init__(self, *rates):
        self.param_groups = [{"lr": rate} if rate is not None else {} for rate in rates]


class Device:
    def can_keep(self, tensor):
        return True

    def keep(self, tensor):
        return ("on its way", tensor.value)


@pytest.mark.parametrize(
    ("rates", "numbers", "kept"),
    [
        ((1e-3, 1e-4, 1), [1e-3, 1e-4, 1.0], []),
        ((Tensors.Tensor(0.5), 0.25), [0.5, 0.25], []),
        ((0.5, Tensors.Tensor(0.25, is_cpu=False)), [0.5], [("on its way", 0.25)]),
        ((0.5, None), [], []),
        (tuple(Tensors.Tensor(0.5, is_cpu=False) for _ in range(9)), [], []),
    ],
)
def test_rates_of_all_groups_are_told_or_none(rates, numbers, kept):
    found = optimizing.rates_of(Tensors, Rated(*rates), Device())
    assert (found.numbers, found.kept) == (numbers, kept)


class Parameter:
    def __init__(self, size):
        self.numel = lambda: size


class Shard(Parameter):
    _local_tensor = None


def test_parameters_are_counted_once_and_with_the_shards_of_others():
    class Optimizer:
        def __init__(self, *parameters):
            self.param_groups = [{"params": parameters}]

    shared, optimizers = Parameter(10), []
    assert optimizing.parameters_of([Optimizer(shared, Parameter(5)), Optimizer(shared)]) == 15
    assert optimizing.parameters_of([Optimizer(shared)], shard_ranks=4) == 40, "FSDP1's flat shard"
    assert optimizing.parameters_of([Optimizer(Shard(100))]) == 100, "a DTensor tells its whole size"
    assert optimizing.parameters_of(optimizers) is None
    assert optimizing.has_dtensors([Optimizer(Shard(1))]) and not optimizing.has_dtensors([Optimizer(shared)])


def test_batches_are_told_by_their_inputs_and_labels():
    torch = pytest.importorskip("torch")
    x, y = torch.tensor([[1.0, 3.0], [float("nan"), 5.0]]), torch.tensor([0, 1])
    told = inputs.statistics(torch, {"x": x, "more": [torch.ones(1)], "y": y})
    assert (told["input_mean"], told["input_nonfinite"]) == (3.0, 0.25)
    assert told["input_deviation"] == pytest.approx(math.sqrt(8 / 3))
    assert (told["label_mean"], told["label_deviation"]) == (0.5, 0.5) and "label_nonfinite" not in told
    assert "label_mean" not in inputs.statistics(torch, x)
    assert inputs.statistics(torch, ["a", 1]) == inputs.statistics(torch, torch.empty(0)) == {}
    large = torch.arange(1_000_000.0).reshape(1000, 1000).T
    assert inputs.statistics(torch, large)["input_mean"] == pytest.approx(499_999.5, rel=0.01)
    assert inputs.statistics(torch, torch.full((3,), float("inf"))) == {"input_nonfinite": 1.0}


def test_padding_is_read_from_a_mask_of_the_tokens_only():
    torch = pytest.importorskip("torch")
    ids = torch.arange(12).reshape(3, 4)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])

    def padding(**batch):
        return inputs.statistics(torch, batch).get("padding_ratio")

    assert padding(input_ids=ids, attention_mask=mask) == pytest.approx(5 / 12)
    assert padding(input_ids=ids, attention_mask=mask.bool()) == pytest.approx(5 / 12)
    assert padding(input_ids=ids, attention_mask=torch.ones_like(mask)) == 0.0
    for other in (mask * 2, -mask, mask.float(), mask[:, :2], mask.reshape(-1)):
        assert padding(input_ids=ids, attention_mask=other) is None
    assert padding(input_ids=ids) is padding(attention_mask=mask) is padding(ids=ids, mask=mask) is None
    wide = torch.zeros(50_000, 2, dtype=torch.int64)
    wide[:, 0] = 1  # a stride of 2 would meet one column only
    assert padding(input_ids=wide, attention_mask=wide) == pytest.approx(0.5, rel=0.01)


def test_the_most_frequent_class_is_read_from_labels_only():
    torch = pytest.importorskip("torch")
    x, classes = torch.randn(20, 3), torch.tensor([7] * 5 + list(range(100, 115)))

    def top(batch):
        return inputs.statistics(torch, batch).get("label_top_ratio")

    assert top((x, classes)) == top([x, classes.to(torch.uint8)]) == top({"x": x, "labels": classes, "id": torch.arange(20)}) == 0.25
    assert top((x, torch.cat([classes, torch.full((20,), inputs.IGNORED)]))) == 0.25, "ignored labels do not count"
    assert top((x, torch.arange(20) % 2 == 0)) == 0.5
    assert top((x, (torch.arange(40) % 4).reshape(20, 2))) == 0.25, "one label per token"
    one_hot = torch.eye(10, dtype=torch.int64).repeat(2, 1)
    for other in (classes.float(), classes - 8, classes * 100, classes[:15], one_hot):
        assert top((x, other)) is None
    assert top({"x": x, "mask": classes}) is top((x, classes, torch.arange(20))) is top(classes) is None
    large = torch.cat([torch.zeros(300_000, dtype=torch.int64), torch.arange(1, 4_001).repeat(25)])
    assert top((x, large)) == pytest.approx(0.75, rel=0.01)
    named = inputs.statistics(torch, {"x": x, "labels": classes, "id": torch.arange(1_000, 1_020)})
    assert named["label_mean"] == pytest.approx(classes.float().mean().item()), "by its name, not by its place"


def test_a_closure_s_passes_are_taken_out_of_the_optimizer():
    cycle = Cycle(ScriptedTimeline())
    first_step_ends_at(cycle, 0.0)
    cycle.timeline.marks = [1.0, 3.0, 7.0, 8.0, 8.0, 8.0]
    cycle.begin_optimizer()
    cycle.begin_backward()
    cycle.end_backward()
    cycle.end_optimizer()
    fields = cycle.close().fields()
    assert (fields["forward_s"], fields["backward_s"], fields["optimizer_s"]) == (2.0, 4.0, 1.0)


def test_validation_adds_neither_waiting_nor_samples():
    cycle = Cycle(ScriptedTimeline())
    first_step_ends_at(cycle, 0.0)
    cycle.fetched(1.0, 2.0, (100, None), counts=False)
    cycle.timeline.marks = [3.0, 4.0, 5.0, 5.0]
    cycle.begin_backward()
    cycle.end_backward()
    fields = cycle.close().fields()
    assert "data_s" not in fields and "samples" not in fields
    assert fields["forward_s"] == 1.0


def test_sharded_norms_travel_as_squares():
    cycle = Cycle(ScriptedTimeline(1.0, 1.0))
    cycle.norms, cycle.norms_are_local = [3.0], True
    assert cycle.close().fields() == {"grad_norm_local_sq": 9.0}


def test_a_step_that_does_not_end_keeps_a_limited_number_of_parts(monkeypatch):
    monkeypatch.setattr("lockstep_probe.cycle.PARTS_MAX", 10)
    cycle = Cycle(ScriptedTimeline())
    first_step_ends_at(cycle, 0.0)
    for _ in range(50):
        cycle.timeline.marks = [1.0, 3.0]
        cycle.losses.append(1.0)
        cycle.waited(0.0, 0.5)
        cycle.begin_backward()
        cycle.end_backward()
        assert max(len(cycle._spans), len(cycle._waits), len(cycle.losses)) <= 10
    cycle.timeline.marks = [9.0, 9.0]
    assert cycle.close().fields() == {"step_s": 9.0}, "the parts that are left are not those of the step"
    cycle.timeline.marks = [10.0, 12.0, 13.0, 13.0]
    cycle.begin_backward()
    cycle.end_backward()
    assert cycle.close().fields() == {"step_s": 4.0, "forward_s": 1.0, "backward_s": 2.0}


class Capturing(ScriptedTimeline):
    """Like a GPU's while the script captures a CUDA graph: it has no `keep`, because a copy would be a part of the graph."""

    def can_keep(self, tensor):
        return True

    def usable(self):
        return False


def test_nothing_is_added_to_a_graph_that_the_script_captures(tmp_path):
    probe = Probe({**WORKER, **rank_environment(tmp_path / "socket")})
    probe.cycle = Cycle(Capturing())
    probe._keep_norm("a norm", False)
    probe.clipped_otherwise(["a gradient"])
    probe.scaled(types.SimpleNamespace(is_enabled=lambda: True, _scale="a scale"), "a loss", "their product")
    assert (probe.cycle.norms, probe.cycle.loss_scale) == ([], None)


class LateTimeline(ScriptedTimeline):
    """Like a GPU's: a mark is ready once the device has reached it."""

    device = "cuda:0"
    reached = 0.0

    def mark(self):
        self.marks[0] += 1.0
        return self.marks[0]

    def ready(self, mark):
        return mark <= self.reached

    def memory(self):
        return {"cuda_allocated_bytes": 10, "cuda_reserved_bytes": 20}


def test_steps_of_a_device_are_told_in_order_once_it_has_finished_them(tmp_path):
    listener = Listener(tmp_path / "socket")
    probe = Probe({**WORKER, **rank_environment(listener.path)})
    probe.say_hello = lambda: None
    probe.cycle = Cycle(LateTimeline(0.0))
    for _ in range(PENDING_MAX + 3):
        probe._end_step()
    told_early = len(listener.of("step"))
    probe.cycle.timeline.reached = math.inf
    while probe._pending:
        left = PENDING_MAX - len(probe._pending)
        probe._flush()
        deadline = time.monotonic() + TIMEOUT_S
        while len(listener.of("step")) < left + BURST_MAX and time.monotonic() < deadline:
            time.sleep(0.001)
    listener.close()
    steps = listener.of("step")
    assert told_early == 0
    assert [step["step"] for step in steps] == list(range(4, PENDING_MAX + 4))
    assert {step["dropped"] for step in steps} == {3}
    assert all(later["mono_ns"] >= earlier["mono_ns"] for earlier, later in zip(steps, steps[1:]))
    assert (steps[-1]["step_s"], steps[-1]["cuda_allocated_bytes"]) == (2.0, 10)


class Optimizer:
    pass


def test_the_first_optimizer_leads_until_it_is_gone_or_idle():
    first, second = Optimizer(), Optimizer()
    leader = Leader()
    leader.saw(first)
    leader.saw(second)
    assert leader.is_leading(first) and not leader.is_leading(second)
    for _ in range(IDLE_STEPS_MAX + 1):
        leader.saw(second)
    assert leader.is_leading(second)
    del second
    leader.saw(first)
    assert leader.is_leading(first)


@pytest.mark.parametrize(("cost_s", "step_s", "every"), [(1e-5, 1.0, 1), (0.00015, 0.1, 2), (0.0003, 0.1, 4), (1.0, 0.05, 8)])
def test_a_norm_is_computed_as_often_as_its_cost_allows(cost_s, step_s, every):
    budget, computed = Budget(), 0
    for step in range(200):
        if budget.allows(step):
            computed += step > 0
            budget.spent(cost_s, step_s)
    assert computed == 199 // every


def test_a_loss_with_parts_on_other_ranks_is_not_read(tmp_path):
    """The probe never starts a collective."""

    def collective():
        raise AssertionError("this takes all ranks")

    def loss(*replicated):
        placements = [types.SimpleNamespace(is_replicate=lambda is_whole=is_whole: is_whole) for is_whole in replicated]
        local = types.SimpleNamespace(item=lambda: 7.0)
        return types.SimpleNamespace(numel=lambda: 1, is_cpu=True, item=collective, _local_tensor=local, placements=placements)

    probe = Probe({**WORKER, **rank_environment(tmp_path / "socket")})
    probe._note_loss(loss(True, True))
    probe._note_loss(loss(True, False))
    assert probe.cycle.losses == [7.0]
    assert loggers.plain(loss(True)) is None


def test_a_script_that_changes_the_device_in_each_step_is_measured_on_one(tmp_path):
    probe, told = Probe({**WORKER, **rank_environment(tmp_path / "socket")}), []
    probe.say_hello = lambda: told.append(probe.cycle.timeline.device)
    for _ in range(20):
        probe._follow_device(types.SimpleNamespace(type="cuda"))
        probe._follow_device(types.SimpleNamespace(type="cpu"))
    assert len(told) == DEVICE_CHANGES_MAX + 1 and probe.cycle.timeline.device != "cpu"


class PinnedOnly:
    """The part of torch that copies scalars from a device to the host, in a script whose default device is a GPU."""

    float32, int64 = "float32", "int64"

    @staticmethod
    def empty(count, dtype, device="cuda", pin_memory=False):
        assert device == "cpu", "only dense CPU tensors can be pinned"
        return types.SimpleNamespace(copy_=lambda source, non_blocking: (dtype, source))

    @staticmethod
    def stack(kept):
        return kept


def test_scalars_reach_the_host_also_in_a_script_with_another_default_device():
    timeline = CudaTimeline(PinnedOnly, "cuda:0")
    assert timeline.stage([1.0]) == ("float32", [1.0])
    on_device = [types.SimpleNamespace(is_cpu=False)]
    assert timeline.keep_whole(on_device) == ("int64", on_device)


def test_an_exception_of_a_signal_handler_reaches_the_script(tmp_path):
    code = (
        "import functools, lockstep_probe, signal\n"
        "class Preempted(Exception): pass\n"
        "def plain(*_): raise Preempted\n"
        "class Script:\n"
        "    def method(self, *_): raise Preempted\n"
        "class Called:\n"
        "    def __call__(self, *_): raise Preempted\n"
        "def interrupted():\n"
        "    signal.raise_signal(signal.SIGUSR1)\n"
        "    for _ in range(1000): pass\n"
        "for handler in (plain, Script().method, functools.partial(plain, 1), Called()):\n"
        "    signal.signal(signal.SIGUSR1, handler)\n"
        "    try: lockstep_probe.probe.call(interrupted)\n"
        "    except Preempted: print('reached', lockstep_probe.probe.faults)\n"
    )
    done = python(code, INJECT, environ={**WORKER, **rank_environment(tmp_path / "socket")})
    assert done.stdout == "reached 0\n" * 4, done.stderr


def test_an_exception_inside_the_probe_stays_inside_whatever_the_signal_handlers_are(tmp_path):
    code = (
        "import lockstep_probe, signal\n"
        "class Odd:\n"
        "    def __getattr__(self, name): raise ValueError(name)\n"
        "    def __call__(self, *_): pass\n"
        "signal.signal(signal.SIGUSR1, Odd())\n"
        "print(lockstep_probe.probe.call(lambda: 1 // 0), lockstep_probe.probe.faults)\n"
    )
    done = python(code, INJECT, environ={**WORKER, **rank_environment(tmp_path / "socket")})
    assert done.stdout == "None 1\n", done.stderr


def test_an_exception_inside_the_probe_stays_inside(tmp_path):
    code = (
        "import lockstep_probe, sys\n"
        "probe = lockstep_probe.probe\n"
        "def broken(): raise RuntimeError('inside')\n"
        "results = [probe.call(broken) for _ in range(20)]\n"
        "print(set(results), probe.faults, probe.on)\n"
    )
    listener = Listener(tmp_path / "socket")
    done = python(code, INJECT, environ={**WORKER, **rank_environment(listener.path)})
    listener.close()
    assert done.stdout == "{None} 10 False\n", done.stderr
