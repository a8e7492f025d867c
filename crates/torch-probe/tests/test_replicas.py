"""Checksums of parameters that several ranks hold: equal on replicas until one bit of one replica flips, absent if replicas may differ on purpose."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook

from lockstep_probe import replicas

EVERY, STEPS, FLIPPED_BEFORE = 2, 10, 6  # checks at 2, 4, 6, 8, 10
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def train(wrap, flips_on=None, steps=STEPS, is_local=lambda step: False, optimizer=torch.optim.AdamW, hook=None, before=None, closure=False):
    """Returns a script that trains a small model of odd sizes. Rank `flips_on` flips one bit of its parameters before a step.

    `is_local`: the steps without synchronisation. `before`: called before the model is made. `closure`: `optimizer.step` runs the passes.
    """

    def work():
        replicas.EVERY = EVERY
        dist.init_process_group("gloo")
        if before is not None:
            before()
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(45, 7), nn.Linear(7, 3, bias=False)))
        if hook is not None:
            model.register_comm_hook(None, hook)
        stepping = optimizer(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(dist.get_rank())  # other data on each rank
        for step in range(1, steps + 1):
            x = torch.randn(4, 3, 5, 5, generator=generator)

            def passes():
                stepping.zero_grad()
                with model.no_sync() if is_local(step) else torch.enable_grad():
                    loss = model(x).square().mean()
                    loss.backward()
                return loss

            if closure:
                with torch.no_grad():  # an evaluation
                    model(x)
                stepping.step(passes)
            else:
                passes()
                stepping.step()
            if step == FLIPPED_BEFORE - 1 and dist.get_rank() == flips_on:
                flip(list(model.parameters())[2])
        dist.destroy_process_group()
        return step

    return work


def flip(parameter):
    local = getattr(parameter, "_local_tensor", parameter).detach()
    local.view(torch.int32).view(-1)[1] ^= 1 << 20


def ddp(model):
    return nn.parallel.DistributedDataParallel(model.to(memory_format=torch.channels_last))


def sharded(shape, names):
    def wrap(model):
        mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
        for part in (model[2], model):
            torch.distributed.fsdp.fully_shard(part, mesh=mesh)
        return model

    return wrap


def checks(trained):
    """Returns (group, checksum) of each rank by step."""
    assert not any("failed inside" in note or "not compared" in note for bye in trained.listener.of("bye") for note in bye.get("notes", []))
    found = {}
    for rank in range(len(trained.results)):
        for record in trained.listener.of("step", rank):
            if "parameters_checksum" in record:
                found.setdefault(record["step"], []).append((record["replica_group"], record["parameters_checksum"]))
    return found


def test_a_flipped_bit_of_one_replica_is_seen_from_then_on(knobbed):
    found = checks(knobbed(train(ddp, flips_on=1), count=2))
    assert sorted(found) == [2, 4, 6, 8, 10]
    for step, ((group, first), (other_group, other)) in found.items():
        assert (group, other_group) == (0, 0)
        assert (first == other) == (step < FLIPPED_BEFORE), step
        assert 0 <= first < 2**52 and float(first) == first
    assert len({of_ranks[0] for of_ranks in found.values()}) == len(found), "it changes with each step"


@pytest.mark.skipif(TORCH < (2, 8), reason="before torch 2.8 FSDP2 does not replicate on CPUs")
def test_under_hsdp_ranks_at_the_same_position_of_the_shards_are_replicas(knobbed):
    found = checks(knobbed(train(sharded((2, 2), ("replicate", "shard")), flips_on=3), count=4))
    assert sorted(found) == [2, 4, 6, 8, 10]
    for step, ranks in found.items():
        assert [group for group, _ in ranks] == [0, 1, 0, 1]
        sums = [checksum for _, checksum in ranks]
        assert sums[0] == sums[2] != sums[1], "the shards differ, their replicas do not"
        assert (sums[1] == sums[3]) == (step < FLIPPED_BEFORE), step


def test_steps_with_a_closure_are_checked_after_an_evaluation(knobbed):
    found = checks(knobbed(train(ddp, steps=4, closure=True), count=2))
    assert sorted(found) == [2, 4]
    assert all(first == other for first, other in found.values())


def local_sgd(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.mark.parametrize(
    "work",
    [
        train(sharded((2,), ("shard",)), steps=4),
        train(ddp, steps=4, is_local=lambda step: True),
        train(ddp, steps=4, is_local=lambda step: step % EVERY),
        train(ddp, steps=4, hook=local_sgd),
    ],
    ids=["fsdp", "no_sync", "no_sync between the checks", "own hook"],
)
def test_shards_and_replicas_that_may_differ_on_purpose_have_no_checksum(knobbed, work):
    assert checks(knobbed(work, count=2)) == {}


def test_parameters_that_a_wrapper_sends_after_the_step_are_equal(knobbed):
    def zero(parameters, lr):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=lr)

    found = checks(knobbed(train(ddp, steps=4, optimizer=zero), count=2))
    assert sorted(found) == [2, 4]
    assert all(first == other for first, other in found.values())


def fit_small_model_on_rank_0():
    if dist.get_rank() == 0:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(EVERY):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        del model, optimizer
        gc.collect()  # so that the optimizer of the run leads from its first step


def test_a_rank_whose_steps_have_other_numbers_than_those_of_its_replicas_has_no_checksum(knobbed):
    trained = knobbed(train(ddp, steps=6, before=fit_small_model_on_rank_0), count=2)
    assert trained.listener.of("step", 0)[-1]["step"] == 6 + EVERY
    with_sum = [[record["step"] for record in trained.listener.of("step", rank) if "parameters_checksum" in record] for rank in (0, 1)]
    assert with_sum == [[], [2, 4, 6]]


def test_a_hook_equalises_gradients_only_if_the_hook_that_it_wraps_does():
    half, short = default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper
    for hook in (default_hooks.allreduce_hook, powerSGD_hook.powerSGD_hook, half(default_hooks.allreduce_hook), short(half(powerSGD_hook.powerSGD_hook))):
        assert replicas.is_equalising(hook)
    for hook in (post_localSGD_hook.post_localSGD_hook, half(post_localSGD_hook.post_localSGD_hook), short(half(local_sgd)), local_sgd):
        assert not replicas.is_equalising(hook)


# === sums ===


def checksum(*tensors):
    return replicas.mixed([replicas.sum_of_bits(torch, tensor).item() for tensor in tensors])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.complex64])
@pytest.mark.parametrize(("offset", "size"), [(0, 16), (0, 13), (3, 13), (1, 3), (0, 0)])
def test_every_bit_of_every_element_counts(dtype, offset, size):
    memory = torch.arange((offset + size) * 16, dtype=torch.uint8).view(dtype)[: offset + size].clone()
    tensor = memory[offset:]
    bits = tensor.view(torch.uint8)
    whole = checksum(tensor)
    assert whole == checksum(tensor.clone()), "wherever in memory it is"
    for at in range(bits.numel()):
        for bit in (0, 7):
            bits[at] ^= 1 << bit
            assert checksum(tensor) != whole, (at, bit)
            bits[at] ^= 1 << bit
    assert checksum(tensor) == whole


def test_swapped_parameters_are_seen():
    a, b = torch.randn(8), torch.randn(8)
    assert checksum(a, b) != checksum(b, a)
    assert checksum(a) != checksum(a, torch.zeros(8))


def test_only_dense_plain_tensors_are_summed():
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert replicas.local_part(torch, nn.Parameter(images)) is not None
    assert checksum(images.detach()) == checksum(images.permute(0, 2, 3, 1).contiguous())
    quantised = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    for other in (torch.randn(4, 4)[:, ::2], torch.randn(4).expand(3, 4), torch.randn(4, device="meta"), torch.randn(3, 3).to_sparse(), quantised):
        assert replicas.local_part(torch, other) is None
