"""`activation_checkpointing`: the same losses bit for bit, less memory; and every reason to leave a model unchanged."""

import copy
import gc
import pickle
import random
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from knob_models import Block, Deep, Normed, batch, train
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

NAME = "activation_checkpointing"
BLOCK = {NAME: "block"}


def seeded(make, **how):
    """A work that trains a model made from a seed."""

    def work():
        torch.manual_seed(0)
        return train(make(), **how)

    return work


def assert_refused(knobbed, make, reason, knobs=BLOCK, **how):
    """The knob reports the reason, and the script trains as without it."""
    refused = knobbed(seeded(make, **how), knobs)
    assert refused.state(NAME) == "failed" and reason in refused.detail(NAME), refused.answers()
    assert refused.result == knobbed(seeded(make, **how)).result


# === the same, with less kept ===


def test_under_ddp_autocast_and_dropout_the_losses_are_the_same_bits(knobbed):
    def work():
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(Deep())

        def forward(x):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x).float()

        return train(model, forward=forward)

    with_it, without = knobbed(work, BLOCK, count=2), knobbed(work, count=2, LOCKSTEP_MEASURE_SAVED="1")
    assert with_it.state(NAME) == "applied" and "6 of 6 blocks" in with_it.detail(NAME)
    assert with_it.results == without.results
    assert max(with_it.saved()) < 0.5 * min(without.saved())


def test_running_statistics_are_moved_once_a_step(knobbed):
    def work():
        torch.manual_seed(0)
        model = Deep(block=Normed)
        losses = train(model)
        return losses, {name: buffer.tolist() for name, buffer in model.named_buffers()}

    with_it = knobbed(work, BLOCK)
    assert with_it.state(NAME) == "applied"
    assert with_it.result == knobbed(work).result
    assert with_it.result[1]["blocks.0.norm.num_batches_tracked"] == 4


class Skipping(Block):
    """Randomly left out, by Python's own random numbers."""

    def forward(self, x, scale=1.0):
        return x * 0.99 if random.random() < 0.4 else super().forward(x, scale)


def test_blocks_that_are_skipped_by_python_s_random_numbers_are_skipped_twice(knobbed):
    def work():
        random.seed(7)
        torch.manual_seed(0)
        return train(Deep(block=Skipping), steps=8)

    with_it = knobbed(work, BLOCK)
    assert with_it.state(NAME) == "applied"
    assert with_it.result == knobbed(work).result


def test_keys_copies_pickles_and_classes_of_a_changed_model_are_the_script_s_own(knobbed):
    def work():
        torch.manual_seed(0)
        model = Deep()
        keys = list(model.state_dict())
        train(model)
        changed = type(model.blocks[0])
        other, read = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        x, _ = batch(0)
        model.eval(), other.eval(), read.eval()
        return {
            "keys": list(model.state_dict()) == keys,
            "stands in": changed is not Block and issubclass(changed, Block) and changed.__name__ == "Block",
            "one class": len({type(block) for block in model.blocks}) == 1,
            "a copy is plain": type(other.blocks[0]) is Block and type(read.blocks[0]) is Block,
            "and computes the same": torch.equal(model(x), other(x)) and torch.equal(model(x), read(x)),
        }

    trained = knobbed(work, BLOCK)
    assert all(trained.result.values()), trained.result
    assert trained.state(NAME) == "applied"


@pytest.mark.parametrize("flat", [False, True])
def test_blocks_that_are_sharded_each(knobbed, flat):
    def work():
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = Deep(count=4)
        if flat:
            model.blocks = nn.ModuleList([FullyShardedDataParallel(block, device_id=torch.device("cpu")) for block in model.blocks])
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        else:
            for part in [*model.blocks, model]:
                torch.distributed.fsdp.fully_shard(part)
        return train(model)

    with_it, without = knobbed(work, BLOCK, count=2), knobbed(work, count=2, LOCKSTEP_MEASURE_SAVED="1")
    assert with_it.state(NAME) == "applied" and "4 of 4 blocks" in with_it.detail(NAME), with_it.answers()
    assert with_it.results == without.results
    assert max(with_it.saved()) < 0.5 * min(without.saved())


def test_granularities(knobbed):
    def sequential():
        return nn.Sequential(nn.Linear(4, 16), *[Block() for _ in range(8)], nn.Linear(16, 1))

    plain = knobbed(seeded(sequential), LOCKSTEP_MEASURE_SAVED="1")
    saved = {}
    for value, says in {"every=2": "4 of 8 blocks", "sequential=4": "3 of 4 parts"}.items():
        trained = knobbed(seeded(sequential), {NAME: value})
        assert trained.state(NAME) == "applied" and says in trained.detail(NAME), trained.answers()
        assert trained.result == plain.result
        saved[value] = max(trained.saved())
    assert max(saved.values()) < 0.65 * min(plain.saved())
    whole = knobbed(seeded(sequential), {NAME: "sequential=1"})
    assert whole.result == plain.result and "1 of 1 parts" in whole.detail(NAME) and "warning: one part" in whole.detail(NAME)
    untouched = knobbed(seeded(sequential), {NAME: "none"})
    assert (untouched.state(NAME), untouched.saved()) == ("applied", plain.saved())


class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 1)
        self.stage1, self.stage2 = (nn.Sequential(*[Block() for _ in range(3)]) for _ in range(2))

    def forward(self, x):
        return self.last(self.stage2(self.stage1(self.first(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 1)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3, enable_nested_tensor=False)

    def forward(self, x):
        return self.last(self.encoder(self.first(x).unsqueeze(1))[:, 0])


def test_a_stage_is_what_holds_blocks_and_a_whole_encoder_or_a_single_layer_gets_a_warning(knobbed):
    staged = knobbed(seeded(Stages), {NAME: "stage"})
    assert "2 stages (Sequential: stage1, stage2) with 6 blocks" in staged.detail(NAME)
    assert "warning" not in staged.detail(NAME)
    assert staged.result == knobbed(seeded(Stages)).result
    whole = knobbed(seeded(Encoder), {NAME: "stage"})
    assert whole.state(NAME) == "applied" and "warning: one part holds every block" in whole.detail(NAME)
    layers = knobbed(seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))), BLOCK)
    assert layers.state(NAME) == "applied" and "warning: each block is a single layer" in layers.detail(NAME)
    assert_refused(knobbed, Deep, "the model has no stages", {NAME: "stage"})


# === left alone ===


class InPlace(Block):
    def forward(self, x, scale=1.0):
        return self.down(self.up(x.mul_(0.9)))


class Counting(Block):
    """Returns another value each time it runs."""

    runs = 0

    def forward(self, x, scale=1.0):
        self.runs += 1
        return super().forward(x, scale) + self.runs


def test_blocks_that_cannot_run_twice_are_left_alone(knobbed):
    assert_refused(knobbed, lambda: Deep(block=InPlace), "changes its own input in place")
    counted = knobbed(seeded(lambda: Deep(block=Counting)), BLOCK)
    assert counted.state(NAME) == "failed" and "not give the same result twice" in counted.detail(NAME)


def test_models_without_blocks_or_with_checkpointing_of_their_own_are_left_alone(knobbed):
    assert_refused(knobbed, lambda: nn.Linear(4, 1), "no model with repeated blocks")
    assert_refused(knobbed, lambda: Deep(count=2), "no model with repeated blocks")

    def checkpointing():
        model = Deep()
        model.gradient_checkpointing = True
        return model

    assert_refused(knobbed, checkpointing, "checkpoints its activations itself")


@pytest.mark.parametrize("value", ["layers", "every=0", "every=", "sequential=0", "stage=2"])
def test_a_value_that_means_nothing_is_refused(knobbed, value):
    trained = knobbed(seeded(Deep, steps=1), {NAME: value})
    assert trained.state(NAME) == "failed" and "nothing was changed" not in trained.detail(NAME)


def test_a_knob_that_finds_no_blocks_does_not_keep_models_alive(knobbed):
    def work():
        model = nn.Linear(2, 1)
        model(torch.ones(1, 2))
        dropped = weakref.ref(model)
        del model
        gc.collect()
        return dropped() is None

    assert knobbed(work, BLOCK).result


def test_compiled_models_and_compiled_steps_are_left_to_the_compiler(knobbed):
    def whole_model():
        return torch.compile(Deep(), backend="eager")

    assert_refused(knobbed, whole_model, "torch.compile", steps=2)

    def compiled_step():
        torch.manual_seed(0)
        model = Deep()
        compiled = torch.compile(lambda x: model(x), backend="eager", fullgraph=True)
        return train(model, forward=compiled)

    trained = knobbed(compiled_step, {**BLOCK, "amp": "bf16", "grad_clip_norm": "1", "lr_scale": "1"})
    assert trained.state(NAME) == trained.state("amp") == "failed"
    assert trained.result == knobbed(compiled_step, {"grad_clip_norm": "1"}).result


def test_measuring_gives_way_to_those_who_forbid_hooks(knobbed):
    def work():
        model = Deep(count=3)

        def forward(x):
            torch.func.grad(lambda y: (y * y).sum())(x)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                return model(x)

        return train(model, forward=forward)

    assert len(knobbed(work, LOCKSTEP_MEASURE_SAVED="1").saved()) <= 3


def test_gradients_through_a_frozen_part_and_a_second_backward_pass(knobbed):
    def work():
        torch.manual_seed(0)
        model = Deep()
        for parameter in model.first.parameters():
            parameter.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for step in range(4):
            x, y = batch(step)
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    with_it = knobbed(work, BLOCK)
    assert with_it.state(NAME) == "applied"
    assert with_it.result == knobbed(work).result
