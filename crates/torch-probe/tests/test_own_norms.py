"""The norm of a rank's own gradients: read before they are combined, of the same parameters on all ranks, and absent where it would mislead."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lockstep_probe import norms, own_norms

STEPS = 6
MEASURED = [2, 3, 4, 5, 6]  # the parameters are chosen at the end of the first step


def train(wrap, batches=1, scaler=False):
    """Returns a script that trains a model on the same data on two ranks; the second one multiplies its loss by 100.

    Its result is the true norm of the rank's gradients of the first batch, over the matrices of the model.
    """

    def work():
        norms.Budget.SHARE = 1e6  # every step is measured
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        model = wrap(copy.deepcopy(plain))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaling = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaler)
        inputs = [torch.randn(4, 6) for _ in range(batches)]

        def loss(module, x):
            return (1.0, 100.0)[dist.get_rank()] * module(x).square().mean()

        for _ in range(STEPS):
            for x in inputs:
                scaling.scale(loss(model, x)).backward()
                assert not any(parameter._backward_hooks for parameter in model.parameters()), "hooks stay only during the pass"
            scaling.step(optimizer)
            scaling.update()
            optimizer.zero_grad()
        loss(plain, inputs[0]).backward()
        dist.destroy_process_group()
        return torch.stack([p.grad.norm() for p in plain.parameters() if p.dim() > 1]).norm().item()

    return work


def ddp(model):
    return nn.parallel.DistributedDataParallel(model)


def fsdp2(model):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for part in (model[2], model):
        torch.distributed.fsdp.fully_shard(part, mesh=mesh)
    return model


def compiled(model):
    return ddp(torch.compile(model, backend="eager"))


def alone(model):
    groups = [dist.new_group([rank]) for rank in range(2)]
    return nn.parallel.DistributedDataParallel(model, process_group=groups[dist.get_rank()])


def own(trained, rank):
    """Returns step -> norm."""
    notes = [note for bye in trained.listener.of("bye") for note in bye.get("notes", [])]
    assert not any("failed inside" in note or "own gradients" in note for note in notes), notes
    return {record["step"]: record["grad_norm_own"] for record in trained.listener.of("step", rank) if "grad_norm_own" in record}


@pytest.mark.parametrize(
    "work",
    [train(ddp), train(ddp, batches=2), train(ddp, scaler=True), train(fsdp2), train(fsdp2, batches=2)],
    ids=["ddp", "ddp of two batches", "ddp with a scaled loss", "fsdp2", "fsdp2 of two batches"],
)
def test_each_rank_tells_the_norm_of_its_own_gradients(knobbed, work):
    trained = knobbed(work, count=2)
    for rank, true in enumerate(trained.results):
        found = own(trained, rank)
        assert sorted(found) == MEASURED
        assert list(found.values()) == pytest.approx([true] * len(found), rel=1e-4)
    assert trained.results[1] == pytest.approx(100 * trained.results[0], rel=1e-4)


@pytest.mark.parametrize("wrap", [compiled, alone])
def test_compiled_code_and_groups_of_some_ranks_have_none(knobbed, wrap):
    trained = knobbed(train(wrap), count=2)
    assert [own(trained, rank) for rank in range(2)] == [{}, {}]
    assert all(len(trained.listener.of("step", rank)) == STEPS for rank in range(2))


# === parts ===


def test_at_most_eight_matrices_are_chosen_all_over_the_model():
    def of(*shape):
        return torch.empty(shape, device="meta")

    layers = [(f"{part} {layer}", of(*shape)) for layer in range(20) for part, shape in [("weight", (4, 4)), ("bias", (4,))]]
    chosen = [name for name, _ in own_norms.spread([("embedding", of(1 << 13, 1 << 12)), *layers])]
    assert chosen == [f"weight {layer}" for layer in (0, 2, 5, 8, 10, 13, 16, 19)]
    assert [name for name, _ in own_norms.spread(layers[:4])] == ["weight 0", "weight 1"]
    assert own_norms.spread(layers[1:2]) == layers[1:2], "vectors, if there are no matrices"
    assert own_norms.spread([]) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_norm_is_a_float32_of_any_kind_of_gradient(dtype):
    found = own_norms.norm_of(torch, torch.full((400,), 4096.0, dtype=dtype))
    assert (found.dtype, found.dim(), found.item()) == (torch.float32, 0, 81_920.0), "more than a float16 holds"
    assert own_norms.norm_of(torch, torch.tensor([1.0, float("nan")])).isnan()


def test_what_is_no_plain_dense_gradient_has_no_norm():
    assert own_norms.norm_of(torch, torch.ones(3, 3).to_sparse()) is None
    assert own_norms.norm_of(torch, nn.Parameter(torch.ones(3))) is None, "nor any other subclass"


def test_a_reduction_with_other_arguments_is_left_alone():
    assert own_norms.takes_lists(([1, 2], ["a", "b"], "group"))
    for arguments in ((), ([1],), ([1], []), ("group", [1], ["a"]), ([1], ("a",))):
        assert not own_norms.takes_lists(arguments)
