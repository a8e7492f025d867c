"""Knobs that change an argument of torch: time-outs of groups, FSDP's sharding, DataLoaders; and mixed precision."""

import datetime
import json
import os
import pathlib
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from knob_models import Deep, batch, train
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

# === process_group_timeout_s ===


def timeouts(own=None):
    def work():
        dist.init_process_group("gloo", timeout=own)
        other = dist.new_group([0], timeout=datetime.timedelta(seconds=5))
        cpu = torch.device("cpu")
        train(Deep(), steps=1)
        return [group._get_backend(cpu).options._timeout.total_seconds() for group in (dist.group.WORLD, other)]

    return work


def test_every_group_gets_the_time_out(knobbed):
    assert knobbed(timeouts()).result == [1800, 5]
    for own, says in [(None, "the script had torch's default"), (datetime.timedelta(seconds=9), "the script had 9 s")]:
        trained = knobbed(timeouts(own), {"process_group_timeout_s": "1234.5"})
        assert trained.result == [1234.5, 1234.5]
        assert trained.state("process_group_timeout_s") == "applied" and says in trained.detail("process_group_timeout_s")


def test_without_a_group_or_with_a_time_that_is_none_it_is_refused(knobbed):
    for value, says in [("60", "has made no process group"), ("-1", "must be a number above 0")]:
        trained = knobbed(lambda: train(Deep()), {"process_group_timeout_s": value})
        assert trained.state("process_group_timeout_s") == "failed" and says in trained.detail("process_group_timeout_s")


def ordered(*orders, own=None):
    """Time-outs of two groups after each order during a training; the second group is created after the first order."""

    def work():
        dist.init_process_group("gloo", timeout=own)
        folder = pathlib.Path(os.environ["LOCKSTEP_PROBE_SOCKET"]).parent
        groups, seen = [dist.group.WORLD], []

        def after(model, optimizer):
            at = model.steps = getattr(model, "steps", 0) + 1
            if at > 1:
                seen.append([group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups])
            if at == 2:
                groups.append(dist.new_group([0], timeout=datetime.timedelta(seconds=5)))
            if at <= len(orders):
                (folder / "part").write_text(json.dumps(orders[at - 1]))
                (folder / "part").rename(folder / "knobs.live")
                time.sleep(0.3)  # the file is checked four times per second

        train(Deep(), steps=len(orders) + 1, after=after)
        dist.barrier()
        return seen

    return work


def live(number, value, **others):
    return {"order": 10 + number, "live": number, "set": {"process_group_timeout_s": value, **others}}


@pytest.mark.parametrize(("knobs", "first"), [(None, 1800), ({"process_group_timeout_s": "1000"}, 1800)])
def test_a_time_out_is_changed_while_the_run_goes_on_and_back_to_the_script_s_own(knobbed, knobs, first):
    trained = knobbed(ordered(live(1, "77", amp="bf16"), live(2, "78"), live(3, None)), knobs)
    assert trained.result == [[77], [78, 78], [first, 5]]
    said = [r for r in trained.listener.of("knob") if "live" in r]
    of_time_out = [(r["live"], r["value"], r["state"]) for r in said if r["name"] == "process_group_timeout_s"]
    assert of_time_out == [(1, "77", "applied"), (2, "78", "applied"), (3, "", "applied")]
    assert said[-1]["detail"] == "collectives begun from now on may take what the script gave them (1800 s, 5 s), in 2 process groups"
    amp = [r for r in said if r["name"] == "amp"]
    assert [(r["live"], r["state"]) for r in amp] == [(1, "failed")] and "another attempt can" in amp[0]["detail"]


def test_what_the_script_gave_its_groups_itself_is_what_they_get_back(knobbed):
    assert knobbed(ordered(live(1, "77"), live(2, None), own=datetime.timedelta(seconds=900))).result == [[77], [900, 5]]


def test_an_order_that_cannot_be_carried_out_says_so_and_changes_nothing(knobbed):
    trained = knobbed(ordered(live(1, "0"), {"live": "many"}, own=datetime.timedelta(seconds=900)))
    assert trained.result == [[900], [900, 5]]
    [answer] = [r for r in trained.listener.of("knob") if "live" in r]
    assert (answer["live"], answer["value"], answer["state"]) == (1, "0", "failed") and "above 0" in answer["detail"]
    assert any("knobs.live" in note for note in trained.listener.of("bye")[0]["notes"])


def test_a_time_out_that_a_backend_ignores_is_refused_and_every_group_keeps_its_own(knobbed):
    def work():
        first = []

        def deaf(timeout, group):  # as torch's setter does for a backend that is neither gloo nor NCCL
            first.append(group) if not first else None
            if group is not first[0]:
                group._get_backend(torch.device("cpu"))._set_default_timeout(timeout)

        module = dist.distributed_c10d
        module.set_timeout = module._set_pg_timeout = deaf
        return ordered(live(1, "77"), live(2, "78"))()

    trained = knobbed(work)
    assert trained.result == [[1800], [1800, 5]]
    answers = [r for r in trained.listener.of("knob") if "live" in r]
    assert [answer["state"] for answer in answers] == ["failed", "failed"]
    assert "1 of 2 process groups (gloo) do not take" in answers[1]["detail"]


def test_without_a_group_a_rank_says_that_there_is_none(knobbed):
    def work():
        folder = pathlib.Path(os.environ["LOCKSTEP_PROBE_SOCKET"]).parent
        (folder / "knobs.live").write_text(json.dumps(live(1, "60")))
        return train(Deep(), steps=2)

    [answer] = [r for r in knobbed(work).listener.of("knob") if "live" in r]
    assert answer["state"] == "failed" and "has made no process group" in answer["detail"]


# === reshard_after_forward, fsdp_sharding ===


def sharded(flat=False, **arguments):
    """Losses, and the final arguments of FSDP."""

    def work():
        from torch.distributed.fsdp import fully_shard  # after the probe has come, as in a script

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = Deep(count=3)
        if flat:
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), **arguments)
        else:
            for block in model.blocks:
                fully_shard(block, **arguments)
            fully_shard(model, **arguments)
        losses = train(model)
        if flat:
            return losses, model.sharding_strategy.name
        modules = [fully_shard.state(module)._fsdp_param_group for module in (model.blocks[0], model)]
        return losses, [group.post_forward_mesh_info is not None for group in modules]

    return work


def test_parameters_are_kept_or_freed_after_the_forward_pass_and_the_losses_stay(knobbed):
    plain = knobbed(sharded(), count=2)
    assert plain.result[1] == [True, False]
    for name, value, freed in [("reshard_after_forward", "false", False), ("reshard_after_forward", "true", True), ("fsdp_sharding", "grad_op", False)]:
        trained = knobbed(sharded(), {name: value}, count=2)
        assert trained.state(name) == "applied", trained.answers()
        assert [result[0] for result in trained.results] == [result[0] for result in plain.results]
        assert trained.result[1][0] == freed
    assert "in 4 modules, the root included; the script had torch's default" in knobbed(sharded(), {"reshard_after_forward": "true"}, 2).detail("reshard_after_forward")


def test_the_older_fsdp_gets_another_strategy(knobbed):
    for knob, strategy in [
        ({"reshard_after_forward": "false"}, "SHARD_GRAD_OP"),
        ({"fsdp_sharding": "no_shard"}, "NO_SHARD"),
        ({"fsdp_sharding": "shard_grad_op", "reshard_after_forward": "true"}, "SHARD_GRAD_OP"),
    ]:
        trained = knobbed(sharded(flat=True), knob, count=2)
        assert trained.result[1] == strategy
        assert trained.state(next(iter(knob))) == "applied"
        if len(knob) == 2:
            assert "fsdp_sharding is given as well" in trained.detail("reshard_after_forward")


def test_what_fsdp_cannot_do_by_an_argument_is_refused(knobbed):
    plain = {flat: knobbed(sharded(flat), count=2).result for flat in (False, True)}
    for flat, knob, says in [
        (False, {"fsdp_sharding": "no_shard"}, "DistributedDataParallel"),
        (False, {"fsdp_sharding": "hybrid_shard"}, "mesh of two dimensions"),
        (True, {"fsdp_sharding": "hybrid"}, "process groups"),
        (False, {"reshard_after_forward": "yes"}, "true or false"),
    ]:
        trained = knobbed(sharded(flat), knob, count=2)
        [(state, detail)] = trained.answers().values()
        assert state == "failed" and says in detail
        assert trained.result == plain[flat]
    assert knobbed(lambda: train(Deep()), {"fsdp_sharding": "full"}).detail("fsdp_sharding").endswith("(neither fully_shard nor FullyShardedDataParallel)")


def test_a_strategy_of_nothing_has_nothing_to_free(knobbed):
    trained = knobbed(sharded(True, sharding_strategy=ShardingStrategy.NO_SHARD), {"reshard_after_forward": "true"}, count=2)
    assert trained.result[1] == "NO_SHARD" and trained.state("reshard_after_forward") == "failed"


# === num_workers, micro_batch ===


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return batch(i, 1)[0][0], batch(i, 1)[1][0]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([batch(i, 1)[0][0] for i in range(4)])


class SharedStream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([batch(i, 1)[0][0] for i in range(first, 4, every)])


def loading(**arguments):
    """Losses over a loader, and its arguments."""

    def work():
        torch.manual_seed(0)
        model, loader = Deep(count=3), DataLoader(Numbers(), **{"batch_size": 4, "shuffle": True, **arguments})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, loader.num_workers, loader.batch_size

    return work


def test_workers_fetch_the_same_samples(knobbed):
    plain = knobbed(loading())
    assert plain.result[1:] == [0, 4]
    more = knobbed(loading(), {"num_workers": "2"})
    assert more.result == [plain.result[0], 2, 4] and more.state("num_workers") == "applied"
    none = knobbed(loading(num_workers=2, persistent_workers=True, prefetch_factor=4, multiprocessing_context="fork"), {"num_workers": "0"})
    assert none.result == plain.result and "the first one had 2" in none.detail("num_workers")


@pytest.mark.parametrize(("dataset", "state"), [(Stream, "failed"), (SharedStream, "applied")])
def test_a_stream_gets_workers_only_where_it_shares_itself_out(knobbed, dataset, state):
    def work():
        train(Deep(), steps=1)
        return len(list(DataLoader(dataset(), batch_size=1)))

    trained = knobbed(work, {"num_workers": "2"})
    assert (trained.result, trained.state("num_workers")) == (4, state)


def test_workers_that_would_be_spawned_are_the_script_s_to_choose(knobbed):
    refused = knobbed(loading(multiprocessing_context=None), {"num_workers": "x"})
    assert refused.state("num_workers") == "failed"

    def spawning():
        torch.multiprocessing.set_start_method("spawn", force=True)
        return loading()()

    refused = knobbed(spawning, {"num_workers": "2"})
    assert refused.result == knobbed(loading()).result and "started by 'spawn'" in refused.detail("num_workers")


def test_another_micro_batch_and_when_it_is_refused(knobbed):
    trained = knobbed(loading(), {"micro_batch": "8"})
    assert trained.result[2] == 8 and len(trained.result[0]) == 3
    assert "8 samples instead of 4, so the global batch is 2 times" in trained.detail("micro_batch")

    def sampled():
        batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(24)), 4, False)
        loader = DataLoader(TensorDataset(torch.zeros(24, 4)), batch_sampler=batches)
        train(Deep(), steps=1)
        return len(list(loader))

    refused = knobbed(sampled, {"micro_batch": "8"})
    assert (refused.result, refused.state("micro_batch")) == (6, "failed") and "batch_sampler" in refused.detail("micro_batch")


# === amp ===


def casting(cast=False, wrap=None, enabled=True):
    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        if wrap is not None:
            dist.init_process_group("gloo")
            model = wrap(model)

        def forward(x):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                return model(x).float()

        return train(model, forward=forward if cast else None)

    return work


@pytest.mark.parametrize("wrap", [None, DistributedDataParallel])
def test_bfloat16_is_what_a_script_s_own_autocast_gives(knobbed, wrap):
    trained = knobbed(casting(wrap=wrap), {"amp": "bf16"})
    assert trained.state("amp") == "applied", trained.answers()
    assert trained.result == knobbed(casting(True, wrap)).result != knobbed(casting(wrap=wrap)).result


def test_bfloat16_and_checkpointed_blocks_together(knobbed):
    both = knobbed(casting(), {"amp": "bf16", "activation_checkpointing": "block"})
    assert {both.state("amp"), both.state("activation_checkpointing")} == {"applied"}
    assert both.result == knobbed(casting(), {"amp": "bf16"}).result


def test_precision_of_the_script_s_own_is_turned_off_or_left_alone(knobbed):
    off = knobbed(casting(True), {"amp": "off"})
    assert off.state("amp") == "applied" and off.result == knobbed(casting()).result
    for work, value, says in [
        (casting(True), "bf16", "autocast of its own"),
        (casting(), "fp16", "float16 on CPUs"),
        (casting(), "off", "opens no autocast"),
        (casting(), "fp8", "off, bf16 or fp16"),
    ]:
        refused = knobbed(work, {"amp": value})
        assert refused.state("amp") == "failed" and says in refused.detail("amp"), refused.answers()
        assert refused.result == knobbed(work).result
