"""The recipe `rpc-parameter-server`: its buffer and its server called directly, and each mode on real ranks."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from conftest import PACKAGE, SCRIPTS
from recipe_modules import imported, refusal

NAME = "rpc-parameter-server"
RECIPE = PACKAGE / "recipes" / NAME / "main.py"


# === when a batch is applied ===


@pytest.fixture(scope="module")
def buffer():
    with imported(NAME, "buffer") as [module]:
        yield module


def test_a_batch_is_due_when_it_is_full_or_nobody_will_add_to_it(buffer):
    waiting = buffer.Buffer("async", 8, 20, 3, in_flight=3)
    for index in range(7):
        waiting.add(index % 3, index, None)
        assert not waiting.is_due()
    waiting.add(1, 7, None)
    assert waiting.is_due() and len(waiting.take()) == 8
    waiting.leave(0)
    for index, worker in enumerate((1, 1, 1, 2, 2)):
        waiting.add(worker, 10 + index, None)
        assert not waiting.is_due(), "worker 2 may still send one"
    waiting.add(2, 16, None)
    assert waiting.is_due(), "six of eight, and both workers wait for an answer"
    assert len(waiting.take()) == 6 and not waiting.is_finished()


def test_in_step_a_worker_sends_its_share_of_the_update_and_no_more(buffer):
    waiting = buffer.Buffer("sync", 8, 20, 3, in_flight=3, done=16)
    assert waiting.end_of_update() == 20
    for index in (18, 16, 17):
        waiting.add(index % 3, index, None)
        assert not waiting.is_due()
    waiting.add(1, 19, None)
    assert waiting.is_due(), "the last four"
    assert [index for _, index, _ in waiting.take()] == [16, 17, 18, 19]
    assert waiting.is_finished()


def test_who_leaves_is_not_waited_for_and_when_all_have_left_it_is_over(buffer):
    waiting = buffer.Buffer("sync", 4, 400, 2, in_flight=2)
    waiting.add(0, 0, None)
    waiting.add(0, 2, None)
    assert not waiting.is_due()
    waiting.leave(1)
    assert waiting.is_due() and len(waiting.take()) == 2
    waiting.leave(0)
    assert waiting.is_finished()


# === the server, without a network ===


@pytest.fixture
def make_server(tmp_path):
    with imported(NAME, "server") as [module]:

        def make(**changed):
            asked = {"mode": "sync", "batch_threshold": 8, "gradients": 20, "in_flight": 3, "steps": 3, "lr": 0.01, "batch_size": 4}
            asked.update(context=4, width=8, seed=0, log_every=1, checkpoint_dir=str(tmp_path), checkpoint_every=100, resume=None)
            return module.ParameterServer(SimpleNamespace(**{**asked, **changed}), range(1, 4), torch.device("cpu"))

        yield make


def gradient(index, size):
    return torch.randn(size, generator=torch.Generator().manual_seed(index))


def send(server, indices, version):
    """Returns the futures of gradients that three workers send in this order."""
    size = len(server.start().weights)
    return [server.gradient(index % 3, index, version, 1.0, gradient(index, size)) for index in indices]


def test_eight_gradients_are_one_update_and_their_futures_complete_with_it(make_server, capsys):
    server = make_server()
    before = server.start().weights
    early = send(server, range(7), version=0)
    assert server.version == 0 and not any(future.done() for future in early)
    assert torch.equal(server.start().weights, before)
    last = send(server, [7], version=0)
    assert server.version == 1 and all(future.done() for future in early + last)
    answer = early[0].value()
    assert answer.version == 1 and torch.equal(answer.weights, server.start().weights) and not torch.equal(answer.weights, before)
    mean = torch.stack([gradient(index, len(before)) for index in range(8)]).mean(0)
    assert torch.equal(torch.cat([parameter.grad.flatten() for parameter in server.model.parameters()]), mean)
    send(server, range(8, 16), version=1)
    rest = send(server, range(16, 20), version=2)
    assert all(future.done() for future in rest), "the last four fill no batch"
    said = re.findall(r"^step (\d) loss 1 gradients (\d) staleness (\d)$", capsys.readouterr().out, re.MULTILINE)
    assert said == [("1", "8", "0"), ("2", "8", "0"), ("3", "4", "0")]
    assert server.ended().value() is False


def test_the_order_of_arrival_changes_no_bit(make_server, tmp_path):
    weights = []
    for order in (range(8), reversed(range(8))):
        server = make_server(checkpoint_dir=None)
        send(server, order, version=0)
        weights.append(server.start().weights)
    assert torch.equal(*weights)


def test_staleness_is_counted_in_updates(make_server, capsys):
    server = make_server(mode="async", gradients=40)
    send(server, range(8), version=0)
    send(server, range(8, 15), version=1)
    send(server, [15], version=0)
    assert "step 2 loss 1 gradients 8 staleness 1\n" in capsys.readouterr().out


@pytest.mark.parametrize("mode, begins", [("async", 0), ("sync", 8)])
def test_a_worker_that_begins_late_has_a_part_in_all_that_waits_for_it(make_server, monkeypatch, mode, begins):
    with imported(NAME, "worker") as [worker]:
        server = make_server(mode=mode, in_flight=8, gradients=24)
        for index in range(8):  # of one worker, or of one that has them all
            server.gradient(0, index, 0, 1.0, gradient(index, len(server.start().weights)))
        assert server.version == 1
        reference = SimpleNamespace(rpc_sync=lambda: server)
        monkeypatch.setattr(worker.rpc, "remote", lambda *_: reference)
        late = worker.Worker(SimpleNamespace(**vars(server.arguments), workers=3), 3, torch.device("cpu"))
    assert (late.version, late.first) == (1, begins)


def test_with_distributed_autograd_a_checkpoint_is_gone_on_from_after_its_last_update(make_server, tmp_path):
    asked = {"mode": "dist-autograd", "batch_threshold": 1, "in_flight": 1, "checkpoint_every": 2}
    server = make_server(**asked)
    for version in range(3):
        server.stepped(version, 1.0)
    half = make_server(**asked, resume=str(tmp_path / "step-000002")).start()
    assert (half.version, half.resumed_at) == (2, 2)
    whole = make_server(**asked, resume="latest")
    assert (whole.start().version, whole.start().resumed_at) == (3, 3)
    assert whole.serve() is False, "nothing is left to do"


def test_when_a_worker_is_lost_those_that_wait_are_told(make_server):
    server = make_server()
    waiting = send(server, range(3), version=0)
    server._fail(RuntimeError("rank 2 is gone"))
    with pytest.raises(RuntimeError, match="rank 2 is gone"):
        waiting[0].value()
    with pytest.raises(RuntimeError, match="rank 2 is gone"):
        send(server, [3], version=0)


# === real ranks ===


def losses(output):
    return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)", output, re.MULTILINE)}


def test_in_step_it_learns_every_series_is_there_and_a_resumed_run_prints_the_same_losses(ranks, tmp_path):
    small = ("--log-every=1", "--gradients=188", "--checkpoint-every=12", f"--checkpoint-dir={tmp_path}")
    whole = ranks(RECIPE, *small, count=3)
    assert whole.code == 0, whole.output
    printed = losses(whole.output)
    assert sorted(printed) == list(range(1, 25)) and float(printed[24]) < float(printed[1]) - 0.8
    assert whole.output.count("gradients 8 staleness 0\n") == 23 and "step 24 loss" in whole.output
    assert re.search(r"^step 24 loss \S+ gradients 4 staleness 0$", whole.output, re.MULTILINE)
    for rank in range(3):
        assert [record["step"] for record in whole.of("step", rank)] == list(range(1, 25))
    server = whole.of("step", 0)
    assert [record["train_rpc_buffer_depth"] for record in server] == [8] * 23 + [4]
    assert {record["train_gradient_staleness_steps"] for record in server} == {0}
    norms = [record["grad_norm"] for record in server if "grad_norm" in record]  # left out in some steps to save time
    assert len(norms) >= 3 and min(norms) > 0
    for record in whole.of("step", 1) + whole.of("step", 2):
        assert record["loss"] > 0 and record["samples"] > 0
    latencies = [record for record in whole.of("step", 1) if "train_rpc_seconds" in record]
    assert len(latencies) >= 20
    assert all(0 < record["train_rpc_seconds"] <= record["train_rpc_seconds_max"] < 30 for record in latencies)
    assert {record["step"] for record in whole.of("checkpoint", 0) if record["phase"] == "end"} == {12, 24}

    said = json.loads((tmp_path / "step-000012" / "lockstep.json").read_text())
    assert (said["step"], said["content"]) == (12, "full")
    rest = ranks(RECIPE, *small[:2], f"--resume={tmp_path / 'step-000012'}", count=2)
    assert rest.code == 0, rest.output
    assert f"resumed from {tmp_path / 'step-000012'} at step 12" in rest.output
    assert losses(rest.output) == {step: printed[step] for step in range(13, 25)}, "also with one worker instead of two"
    assert [record["step"] for record in rest.of("step", 1)] == list(range(13, 25))


def test_as_they_come_it_learns_until_a_worker_is_killed_and_that_ends_the_run(ranks):
    fault = ("--fail-at-step=30", "--fail-rank=2", "--fail-how=sigkill", "--fail-attempts=9")
    run = ranks(RECIPE, "--mode=async", "--in-flight=6", "--log-every=1", "--steps=100000", *fault, count=3)
    assert run.code != 0
    printed = losses(run.output)
    assert float(printed[29]) < float(printed[1]) - 0.8, run.output
    staleness = [record["train_gradient_staleness_steps"] for record in run.of("step", 0)]
    assert 0 < max(staleness) <= 8
    assert "PeerLost: rank 2 (worker2) is gone" in run.output
    [error] = run.of("error", 0)
    assert error["type"] == "PeerLost"
    assert run.of("error", 1) != [], "the other worker did not wait for ever either"


def test_through_distributed_autograd_it_learns_and_a_worker_that_begins_late_has_its_whole_share(ranks):
    run = ranks(SCRIPTS / "late_worker.py", "--mode=dist-autograd", "--log-every=1", "--steps=60", count=3)
    assert run.code == 0, run.output
    printed = [float(loss) for loss in losses(run.output).values()]
    assert len(printed) == 60 and sum(printed[-10:]) / 10 < printed[0] - 0.5
    assert [record["step"] for record in run.of("step", 0)] == list(range(1, 61))
    for rank in (1, 2):
        steps = [record["step"] for record in run.of("step", rank)]
        assert len(steps) == 30 and steps == sorted(steps)
    assert all(record["train_rpc_seconds"] > 0 for record in run.of("step", 1))


# === what cannot work ===


@pytest.mark.parametrize(
    "arguments, ranks, said",
    [
        (["--steps=3"], 1, "rank 0 is the server, so there must be another rank to train: torchrun --nproc-per-node 2 or more"),
        (
            ["--mode=async", "--in-flight=2"],
            4,
            "3 workers with 2 gradients in flight each never fill a batch of 8: raise --in-flight to 3, or lower --batch-threshold to 6",
        ),
        (["--batch-threshold=0"], 4, "argument --batch-threshold: 0 is too small: give 1 or more"),
        (["--lr=nan"], 4, "argument --lr: nan is not above zero"),
        (["--mode=dist-autograd", "--gradients=9"], 4, "--gradients counts the gradients of --mode sync and async; with dist-autograd say --steps"),
        (["--context=5000"], 4, "--context 5000 is longer than the text allows: at most 999"),
    ],
)
def test_what_cannot_work_is_refused_in_words(monkeypatch, capsys, arguments, ranks, said):
    assert refusal(NAME, monkeypatch, capsys, *arguments, ranks=ranks) == f"main.py: error: {said}"
