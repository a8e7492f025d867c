"""Knobs that change an optimizer's step: `grad_clip_norm`, `lr_scale`, `lr_schedule`, each compared with a script that does it itself."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from knob_models import Deep, batch, train
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

CLIP = {"grad_clip_norm": "0.5"}


def seeded(**how):
    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        return train(model, **{name: value(model) if name == "optimizer" else value for name, value in how.items()})

    return work


# === grad_clip_norm ===


def clipping(norm, steps=4):
    """A script that clips itself."""

    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for step in range(steps):
            x, y = batch(step)
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if norm:
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            losses.append(loss.item())
        return losses

    return work


def test_gradients_are_clipped_as_the_script_would_and_their_norm_before_is_reported(knobbed):
    plain, clipped, by_hand = knobbed(clipping(None)), knobbed(clipping(None), CLIP), knobbed(clipping(0.5))
    assert clipped.result == by_hand.result != plain.result
    assert "gradients of SGD are clipped to a norm of 0.5" in clipped.detail("grad_clip_norm")
    norms = [step["grad_norm"] for step in clipped.listener.of("step", 0)]
    assert norms == pytest.approx([step["grad_norm"] for step in by_hand.listener.of("step", 0)], rel=1e-6)
    assert max(norms) > 0.5


def test_of_two_norms_the_smaller_counts(knobbed):
    lowered, smaller = knobbed(clipping(3.0), CLIP), knobbed(clipping(0.1), CLIP)
    assert lowered.result == knobbed(clipping(0.5)).result
    assert "clips to a norm of 3 itself; its call now clips to 0.5" in lowered.detail("grad_clip_norm")
    assert smaller.result == knobbed(clipping(0.1)).result
    assert "0.1 itself, which is smaller and stays" in smaller.detail("grad_clip_norm")


def scaled(norm=None, fused=False):
    """A GradScaler whose first step overflows; clips as torch documents it."""

    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        seen = []
        for step in range(5):
            x, y = batch(step)
            loss = F.mse_loss(model(x), y) * (float("inf") if step == 1 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if norm:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            scaler.step(optimizer)
            scaler.update()
            seen.append((str(loss.item()), scaler.get_scale()))
        return seen, scaler.state_dict(), [parameter.sum().item() for parameter in model.parameters()]

    return work


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_unscaled_first_and_the_scaler_goes_on_as_it_would(knobbed, fused):
    with_it = knobbed(scaled(fused=fused), CLIP)
    assert with_it.state("grad_clip_norm") == "applied", with_it.answers()
    assert with_it.result == knobbed(scaled(0.5, fused)).result
    assert knobbed(scaled(0.5, fused), {"grad_clip_norm": "0.7"}).result == with_it.result


def closing(norm=None, kind=torch.optim.SGD):
    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        optimizer = kind(model.parameters(), lr=0.05)
        losses = []
        for step in range(3):
            x, y = batch(step)

            def closure():
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                if norm:
                    nn.utils.clip_grad_norm_(model.parameters(), norm)
                return loss

            losses.append(float(optimizer.step(closure)))
        return losses

    return work


def test_a_closure_s_gradients_are_clipped_where_they_come_to_be_and_lbfgs_is_left_alone(knobbed):
    assert knobbed(closing(), CLIP).result == knobbed(closing(0.5)).result
    refused = knobbed(closing(kind=torch.optim.LBFGS), CLIP)
    assert refused.state("grad_clip_norm") == "failed" and "LBFGS" in refused.detail("grad_clip_norm")
    assert refused.result == knobbed(closing(kind=torch.optim.LBFGS)).result


def sharded(norm=None, flat=False):
    def work():
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = Deep(count=3)
        if flat:
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        else:
            torch.distributed.fsdp.fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for step in range(3):
            x, y = batch(step + 10 * dist.get_rank())
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if norm and flat:
                model.clip_grad_norm_(norm)
            elif norm:
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            losses.append(loss.item())
        return losses

    return work


@pytest.mark.parametrize("flat", [False, True])
def test_sharded_gradients_are_clipped_by_the_norm_of_all_shards(knobbed, flat):
    with_it, by_hand = knobbed(sharded(flat=flat), CLIP, count=2), knobbed(sharded(0.5, flat), count=2)
    assert with_it.state("grad_clip_norm") == "applied", with_it.answers()
    assert ("FSDP's own" in with_it.detail("grad_clip_norm")) == flat
    assert with_it.results == by_hand.results != knobbed(sharded(flat=flat), count=2).results


# === lr_scale ===


def rated(lr, make_scheduler=None, by_hand=False):
    """Losses of six steps, the first three with another optimizer that is saved and loaded; and the rates that the script sees."""

    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        losses, seen, state = [], [], None
        for part in range(2):
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            scheduler = make_scheduler(optimizer) if make_scheduler else None
            if state is not None:
                optimizer.load_state_dict(state[0])
                if scheduler is not None:
                    scheduler.load_state_dict(state[1])
            for step in range(3 * part, 3 * part + 3):
                if by_hand:
                    for group in optimizer.param_groups:
                        group["lr"] = lr / (step + 1)
                losses += train(model, 1, optimizer)
                seen.append(optimizer.param_groups[0]["lr"])
                if scheduler is not None:
                    scheduler.step()
            state = optimizer.state_dict(), scheduler.state_dict() if scheduler is not None else None
        return losses, seen

    return work


SCHEDULERS = {
    "none": (None, lambda lr: None),
    "steps": (lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),) * 2,
    "one cycle": (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.0625, 8), lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.03125, 8)),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scale_counts_once_whatever_sets_the_rate_and_after_a_resume(knobbed, name):
    make, make_halved = SCHEDULERS[name]
    make_halved = None if make is None else make_halved
    with_it, halved = knobbed(rated(0.0625, make), {"lr_scale": "0.5"}), knobbed(rated(0.03125, make_halved))
    assert with_it.state("lr_scale") == "applied"
    assert with_it.result[0] == halved.result[0]
    assert with_it.result[1] == knobbed(rated(0.0625, make)).result[1], "the script and its checkpoints see their own rate"


def test_a_scale_counts_where_the_script_sets_the_rate_before_each_step(knobbed):
    with_it, halved = knobbed(rated(0.0625, by_hand=True), {"lr_scale": "0.5"}), knobbed(rated(0.03125, by_hand=True))
    assert with_it.result[0] == halved.result[0]


def test_a_rate_that_is_a_tensor_and_a_step_that_raises(knobbed):
    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.0625))
        handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
        rate = optimizer.param_groups[0]["lr"]
        with pytest.raises(ZeroDivisionError):
            train(model, 1, optimizer)
        handle.remove()
        return train(model, 3, optimizer), rate is optimizer.param_groups[0]["lr"], rate.item()

    losses, same, rate = knobbed(work, {"lr_scale": "0.5"}).result
    assert (same, rate) == (True, 0.0625)
    assert losses[2] != knobbed(work).result[0][2]


# === lr_schedule ===


def following(shape, steps):
    """A script that sets the rates itself."""
    factor = {"cosine": lambda t: 0.5 * (1 + math.cos(math.pi * min(1, t / steps))), "linear": lambda t: 1 - min(1, t / steps)}[shape]

    def work():
        torch.manual_seed(0)
        model = Deep(count=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for step in range(6):
            optimizer.param_groups[0]["lr"] = 0.05 * factor(step)
            losses += train(model, 1, optimizer)
        return losses

    return work


def plain_rate():
    torch.manual_seed(0)
    model = Deep(count=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return [loss for _ in range(6) for loss in train(model, 1, optimizer)]


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_a_schedule_is_followed_where_the_script_has_none(knobbed, shape):
    with_it = knobbed(plain_rate, {"lr_schedule": f"{shape}:8"})
    assert with_it.state("lr_schedule") == "applied"
    assert with_it.result == pytest.approx(knobbed(following(shape, 8)).result, rel=1e-6)
    assert with_it.result != knobbed(plain_rate).result


def test_a_script_with_a_schedule_of_its_own_keeps_it(knobbed):
    for own, says in [(rated(0.05, SCHEDULERS["steps"][0]), "StepLR"), (rated(0.05, by_hand=True), "set another rate")]:
        refused = knobbed(own, {"lr_schedule": "cosine:4"})
        assert refused.state("lr_schedule") == "failed" and says in refused.detail("lr_schedule"), refused.answers()
        assert refused.result == knobbed(own).result


@pytest.mark.parametrize(("name", "value"), [("lr_scale", "0"), ("lr_scale", "nan"), ("grad_clip_norm", "much"), ("lr_schedule", "cosine"), ("what", "1")])
def test_a_value_or_a_name_that_means_nothing_is_refused(knobbed, name, value):
    refused = knobbed(seeded(steps=1), {name: value})
    assert refused.state(name) == "failed"
