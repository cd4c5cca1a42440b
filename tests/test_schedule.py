"""The learning rate (5.3) that the optimizer is really given, in the Trainer of transformers."""

import itertools
import math
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState

from vaswani_transformer import (
    NoamSchedule,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniTrainer,
    noam_learning_rate,
)
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.options.training import VaswaniTrainingArguments
from vaswani_transformer.training import callbacks
from vaswani_transformer.training.schedule import WarmupCheck, WarmupCooldown, steps_of_warmup


pytestmark = pytest.mark.system
WARMUP = 3


def rate_of_equation_3(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """The formula as its two branches: it rises linearly up to `warmup_steps`, and then falls."""
    if step < warmup_steps:
        return factor * step / (math.sqrt(d_model) * math.sqrt(warmup_steps) ** 3)
    return factor / (math.sqrt(d_model) * math.sqrt(step))


def exactly(rate: float) -> Any:
    return pytest.approx(rate, rel=1e-12, abs=0.0)


class Recorder(TrainerCallback):
    """Notes the rates of all parameter groups at the very moment of each `optimizer.step`."""

    def __init__(self) -> None:
        self.rates: list[list[float]] = []

    def on_train_begin(self, *args: Any, optimizer: Any, **kwargs: Any) -> None:
        def note(stepped: torch.optim.Optimizer, *args: Any) -> None:
            self.rates.append([float(group["lr"]) for group in stepped.param_groups])

        optimizer.optimizer.register_step_pre_hook(note)


@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100_000])
@pytest.mark.parametrize(("d_model", "warmup_steps", "factor"), [(512, 4000, 1.0), (24, 16000, 0.5)])
def test_the_rate_is_that_of_equation_3(step, d_model, warmup_steps, factor):
    expected = rate_of_equation_3(step, d_model, warmup_steps, factor)
    assert noam_learning_rate(step, d_model, warmup_steps, factor) == exactly(expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"lr_scheduler_type": "constant", "learning_rate": 7.0},
        {"lr_scheduler_type": "cosine", "warmup_steps": 2},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
        {"weight_decay": 0.1, "logging_steps": 2},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3},
    ],
    ids=lambda settings: "-".join(f"{name}={value}" for name, value in settings.items()),
)
def test_the_rate_is_applied_and_logged_with_any_other_option(tiny, stock_trainer, settings):
    trainer = stock_trainer(tiny, NoamSchedule(WARMUP, 0.5), recorder := Recorder(), max_steps=6, **settings)
    trainer.train()
    expected = {step: rate_of_equation_3(step, 24, WARMUP, 0.5) for step in range(1, 7)}
    groups = len(trainer.optimizer.param_groups)
    assert groups == 2
    assert recorder.rates == [[exactly(rate)] * groups for rate in expected.values()]
    logs = [entry for entry in trainer.state.log_history if "learning_rate" in entry]
    logged = {entry["step"]: entry["learning_rate"] for entry in logs}
    assert logged.keys() == {step for step in expected if step % settings.get("logging_steps", 1) == 0}
    assert logged == {step: exactly(expected[step]) for step in logged}


@pytest.mark.parametrize("noam", [True, False])
def test_a_cooldown_ends_any_schedule_at_zero(tiny, stock_trainer, noam):
    callbacks = [NoamSchedule(WARMUP), WarmupCooldown(cooldown=0.4), recorder := Recorder()]
    settings = {"max_steps": 10, "learning_rate": 7.0, "lr_scheduler_type": "constant"}
    trainer = stock_trainer(tiny, *callbacks[0 if noam else 1 :], **settings)
    trainer.train()
    shares = [1, 1, 1, 1, 1, 1, 1, 3 / 4, 2 / 4, 1 / 4]
    before = [rate_of_equation_3(step, 24, WARMUP) if noam else 7.0 for step in range(1, 11)]
    expected = [exactly(rate * share) for rate, share in zip(before, shares, strict=True)]
    assert recorder.rates == [[rate] * 2 for rate in expected]
    assert [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry] == expected


@pytest.fixture
def six_seconds_a_step(monkeypatch):
    """Each reading of the schedule's clock, once a step, is six seconds after the one before."""
    clock = itertools.count(100, 6)
    fake = SimpleNamespace(monotonic=lambda: float(next(clock)), process_time=time.process_time)
    monkeypatch.setattr(callbacks, "time", fake)


def test_a_cooldown_ends_with_the_minutes(tiny, stock_trainer, six_seconds_a_step):
    settings = {"max_steps": 8, "learning_rate": 8.0, "lr_scheduler_type": "constant"}
    stock_trainer(tiny, WarmupCooldown(cooldown=1.0, minutes=0.5), recorder := Recorder(), **settings).train()
    seconds = [6, 12, 18, 24, 30, 36, 42, 48]
    steps = [0, 1, 2, 3, 4, 5, 6, 7]
    done = [min(1.0, max(each / 30, step / 8)) for each, step in zip(seconds, steps, strict=True)]
    assert recorder.rates == [[pytest.approx(8.0 * (1 - share))] * 2 for share in done]


def with_warmup(noam: bool, minutes: float | None) -> list[TrainerCallback]:
    """The callbacks of a warm-up of six steps, in a training of so many minutes, or of a number of steps."""
    return [*[NoamSchedule(6)] * noam, WarmupCooldown(6, noam, minutes=minutes)]


def rates_of_warmup(noam: bool, cut: int | None) -> list[float]:
    """Rates of nine steps; the warm-up has six of them, or ends after `cut`."""
    rates = []
    for step in range(1, 10):
        if cut is not None and step > cut:
            rates.append(rates[cut - 1] * (math.sqrt(cut / step) if noam else 1.0))
        elif noam:
            rates.append(rate_of_equation_3(step, 24, 6))
        else:
            rates.append(7.0 * min(1, (step - 1) / 6))  # transformers' warm-up begins with a step at 0
    return rates


RISE_TO_7 = {"learning_rate": 7.0, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 6}


@pytest.mark.parametrize(("minutes", "cut"), [(4, 4), (40, None)])
@pytest.mark.parametrize("noam", [True, False])
def test_a_warm_up_that_the_minutes_cut_keeps_its_slope(
    tiny, stock_trainer, six_seconds_a_step, caplog, noam, minutes, cut
):
    """24 seconds, a tenth of 4 minutes, are four steps; a tenth of 40 minutes has more than the six."""
    recorder = Recorder()
    trainer = stock_trainer(tiny, *with_warmup(noam, minutes), recorder, max_steps=9, **RISE_TO_7)
    trainer.train()
    assert recorder.rates == [[pytest.approx(rate)] * 2 for rate in rates_of_warmup(noam, cut)]
    assert steps_of_warmup(trainer.state, 6) == (cut or 6)
    warning = "warmup_steps: the warm-up ends after 4 of 6 steps, at a tenth of max_minutes, with a learning rate of "
    assert caplog.text.count(warning) == (cut is not None)
    assert caplog.text.count("warmup_steps: the warm-up ends") == (cut is not None)


@pytest.mark.parametrize("minutes", [40, None])  # with which the warm-up would go on
@pytest.mark.parametrize("noam", [True, False])
def test_a_resumed_training_knows_where_its_warm_up_was_cut(
    tiny, stock_trainer, six_seconds_a_step, tmp_path, caplog, noam, minutes
):
    settings = {"save_strategy": "steps", "save_steps": 5, **RISE_TO_7}
    stock_trainer(tiny, *with_warmup(noam, 4), max_steps=5, **settings).train()
    caplog.clear()
    resumed = stock_trainer(tiny, *with_warmup(noam, minutes), recorder := Recorder(), max_steps=9, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert recorder.rates == [[pytest.approx(rate)] * 2 for rate in rates_of_warmup(noam, 4)[5:]]
    assert steps_of_warmup(resumed.state, 6) == 4
    assert "the warm-up ends" not in caplog.text


def test_the_papers_depth_learns_after_a_warm_up_that_was_cut(tokenizer, tmp_path, clock):
    """Six post-LN layers on each side, with a cut after 54 of 300 steps; a rise to the peak in as many is too steep."""
    pairs = sorted(phrasebook("train"), key=lambda pair: len(pair[1]))[:1500]
    rows = [
        {"input_ids": tokenizer(en)["input_ids"], "labels": tokenizer(text_target=de)["input_ids"]} for en, de in pairs
    ]
    torch.manual_seed(0)
    config = VaswaniConfig(vocab_size=len(tokenizer), d_model=32, d_ff=64, num_heads=4, dropout=0.1, label_smoothing=0)
    assert config.encoder_layers == config.decoder_layers == 6
    options = {"source_tokens": 250, "target_tokens": 250, "max_steps": 180, "logging_steps": 30}
    args = VaswaniTrainingArguments(
        str(tmp_path), **options, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True
    )
    schedule = [clock, NoamSchedule(300), WarmupCooldown(300, falls=True, minutes=54 * 2 / 60 / 0.1)]
    trainer = VaswaniTrainer(
        VaswaniForConditionalGeneration(config),
        args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=schedule,
    )
    trainer.train()
    assert steps_of_warmup(trainer.state, 300) == 54
    counts = Counter(label for row in rows for label in row["labels"])
    shares = torch.tensor([*counts.values()], dtype=torch.float64) / counts.total()
    entropy_of_words = -(shares * shares.log()).sum().item()
    logged = [entry["nll_loss"] for entry in trainer.state.log_history if "nll_loss" in entry]
    assert logged[-1] < 0.95 * entropy_of_words


@pytest.mark.parametrize("check", [WarmupCheck(5), NoamSchedule(5)], ids=["any schedule", "5.3"])
def test_a_warm_up_that_the_training_does_not_reach_is_told(tiny, stock_trainer, caplog, check):
    settings = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5}
    stock_trainer(tiny, check, max_steps=5, **settings).train()
    assert "warmup_steps" not in caplog.text
    stock_trainer(tiny, check, max_steps=4, **settings).train()
    assert caplog.text.count("warmup_steps: training ends at step 4, before the learning rate is highest") == 1


def test_a_skipped_step_is_not_cooled_twice(tiny):
    optimizer = torch.optim.SGD(tiny.parameters(), lr=8.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    cooldown, args, control = WarmupCooldown(cooldown=1.0), SimpleNamespace(world_size=1), TrainerControl()
    found = []
    for step, is_skipped in enumerate((False, True, True, False)):
        state = TrainerState(global_step=step, max_steps=4)
        cooldown.on_step_begin(args, state, control, optimizer=optimizer, lr_scheduler=scheduler)
        found.append(optimizer.param_groups[0]["lr"])
        cooldown.on_optimizer_step(args, state, control, optimizer=optimizer)
        if not is_skipped:
            optimizer.param_groups[0]["lr"] = 8.0  # as a scheduler does after each step that was not skipped
    assert found == [8.0, 6.0, 4.0, 2.0]


@pytest.mark.parametrize(("field", "value"), [("warmup_steps", 0), ("factor", math.nan)])
def test_what_is_not_positive_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"^{field}: must be positive, is {value}$"):
        NoamSchedule(**{field: value})
