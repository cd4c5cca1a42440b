"""Training ends at the first number that is not finite, and nothing of it is saved."""

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distributed_step import STEPS_AN_EPOCH, OverflowingLoss, RecordingTrainer, make_trainer
from safetensors.torch import load_file
from transformers import TrainerCallback

from vaswani_transformer import CheckpointAveraging
from vaswani_transformer.training.divergence import DivergenceError, DivergenceGuard, spread_non_finite


pytestmark = pytest.mark.system
SPOILED = STEPS_AN_EPOCH + 3  # a step in the second epoch


class SpoilGradient(TrainerCallback):
    """Puts a value into one gradient of a step."""

    def __init__(self, step: int, value: float) -> None:
        self.step, self.value = step, value

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step:
            model.lm_head.weight.grad[-1, -1] = self.value


class SpoilWeights(TrainerCallback):
    """Makes one weight NaN after a step, as a weight decay of NaN would all of them."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step:
            next(model.parameters()).data[0, 0] = math.nan


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def diverge(trainer: RecordingTrainer) -> DivergenceError:
    with pytest.raises(DivergenceError) as caught:
        trainer.train()
    return caught.value


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])  # the square of the last overflows
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_gradient_that_is_not_finite_ends_training_before_its_step(model, tokenizer, tmp_path, value, accumulation):
    averaging = CheckpointAveraging(2)
    settings = {"save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": accumulation}
    callbacks = [SpoilGradient(SPOILED, value), averaging]
    error = diverge(make_trainer(model, tokenizer, tmp_path, callbacks=callbacks, **settings))
    assert f"step {SPOILED}: loss or gradient not finite" in str(error)
    assert f"the last good checkpoint is {tmp_path / 'checkpoint-6'};" in str(error)
    assert checkpoints(tmp_path) == ["checkpoint-3", "checkpoint-6"]
    assert averaging.averaged == []
    assert all(weight.isfinite().all() for weight in model.parameters()), "stopped before the optimizer's step"


def test_an_infinite_loss_with_finite_gradients_ends_training(model, tokenizer, tmp_path):
    trainer = make_trainer(model, tokenizer, tmp_path)
    trainer.compute_loss_func = OverflowingLoss(2)
    error = diverge(trainer)
    assert "step 2: loss or gradient not finite; there is no checkpoint before it" in str(error)


@pytest.mark.parametrize(
    ("strategy", "kept"), [({"save_strategy": "steps", "save_steps": 4}, ["checkpoint-4"]), ({}, [])]
)
def test_weights_are_checked_before_they_are_saved(model, tokenizer, tmp_path, strategy, kept):
    trainer = make_trainer(model, tokenizer, tmp_path, max_steps=8, callbacks=[SpoilWeights(8)], **strategy)
    error = diverge(trainer)
    assert "step 8: weights not finite" in str(error)
    assert checkpoints(tmp_path) == kept
    for name in kept:
        assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / name / "model.safetensors").values())
    with pytest.raises(DivergenceError):
        trainer.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final").exists()


def test_only_a_loss_that_is_not_finite_has_another_gradient():
    weight = torch.tensor([0.3, 1e20], requires_grad=True)
    loss = (weight * weight).sum()
    (expected,) = torch.autograd.grad((weight[:1] ** 2).sum(), weight)
    small = (weight[:1] * weight[:1]).sum()
    assert spread_non_finite(small).equal(small)
    assert torch.autograd.grad(spread_non_finite(small), weight, retain_graph=True)[0].equal(expected)
    assert loss.isinf()
    assert torch.autograd.grad(loss, weight, retain_graph=True)[0].isfinite().all()
    assert torch.autograd.grad(spread_non_finite(loss), weight)[0].isnan().all()


@pytest.mark.parametrize(("scale", "ends"), [(65536.0, False), (1.0, True)])
def test_an_overflow_is_a_divergence_once_the_loss_scale_is_one(model, tokenizer, tmp_path, scale, ends):
    trainer = make_trainer(model, tokenizer, tmp_path)
    optimizer = trainer.create_optimizer()
    optimizer.scaler = SimpleNamespace(get_scale=lambda: scale)  # like torch.amp.GradScaler
    model.lm_head.weight.grad = torch.full_like(model.lm_head.weight, math.inf)
    guard, state = DivergenceGuard(), trainer.state
    with pytest.raises(DivergenceError) if ends else nullcontext():
        guard.on_pre_optimizer_step(trainer.args, state, trainer.control, model=model, optimizer=optimizer)
