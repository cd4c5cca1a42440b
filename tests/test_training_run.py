"""`TrainingRun`, which recipes that train share; test_train_wmt.py runs whole trainings with it."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainerState

from vaswani_transformer import CheckpointAveraging, VaswaniConfig
from vaswani_transformer.options.training import ModelArguments, RecipeTrainingArguments
from vaswani_transformer.runs.fine_tuning import FineTuningArguments
from vaswani_transformer.runs.training_run import TrainingRun
from vaswani_transformer.training.callbacks import EarlyStopping
from vaswani_transformer.training.schedule import WarmupCooldown
from vaswani_transformer.training.signals import SignalCheckpoint


@pytest.fixture
def run(tmp_path):
    args = RecipeTrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with ExitStack() as exit_stack:
        yield TrainingRun(args, tmp_path, CheckpointAveraging(), SignalCheckpoint(), exit_stack)


def test_a_row_of_table_3_with_changes_in_two_languages():
    config = ModelArguments(variant="big", d_ff=64).configure("en", "fr", VaswaniConfig)
    assert (config.d_model, config.d_ff, config.source_language, config.target_language) == (1024, 64, "en", "fr")
    assert (config.num_heads, config.dropout) == (16, 0.3)


def test_the_last_checkpoint_is_scored_beside_its_average(run, tmp_path):
    assert run.models_to_score({"validation"}) == {"validation": ("validation", tmp_path)}
    run.averaging.averaged = [Path("checkpoint-4")]  # the same weights
    assert run.models_to_score({"test"}) == {"test": ("test", tmp_path)}
    run.averaging.averaged = [Path("checkpoint-2"), Path("checkpoint-4")]
    assert run.models_to_score({"test"}) == {
        "test": ("test", tmp_path),
        "test_last_checkpoint": ("test", Path("checkpoint-4")),
    }


def test_a_default_without_effect_may_be_given_as_in_a_file_for_another_schedule(tmp_path):
    given = {"warmup_steps": 4000, "learning_rate_factor": 1.0, "lr_scheduler_type": "constant"}
    args = RecipeTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **given)
    assert args.learning_rate == 5e-5
    with pytest.raises(ValueError, match="warmup_steps: has no effect here"):
        RecipeTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **{**given, "warmup_steps": 9})


@pytest.mark.parametrize(
    ("options", "steps", "seconds", "limits"),
    [
        ({}, 6, 50.0, {"num_train_epochs": 3.0}),
        ({"max_steps": 6}, 6, 50.0, {"max_steps": 6}),
        ({"max_steps": 6, "max_minutes": 1.0}, 4, 61.0, {"max_minutes": 1.0}),
        ({"max_steps": 6, "max_minutes": 1.0}, 6, 59.0, {"max_steps": 6}),
        ({"max_steps": 6, "early_stopping_patience": 2}, 4, 50.0, {"early_stopping_patience": 2}),
    ],
)
def test_the_limits_that_ended_a_training_are_recorded(run, options, steps, seconds, limits):
    for name, value in options.items():
        setattr(run.args, name, value)
    stopping = EarlyStopping(2)
    stopping.has_stopped = "early_stopping_patience" in limits
    trainer = SimpleNamespace(
        state=TrainerState(global_step=steps, max_steps=6),
        totals=SimpleNamespace(seconds=seconds),
        callback_handler=SimpleNamespace(callbacks=[stopping]),
    )
    assert run._limits(trainer) == limits


@pytest.mark.parametrize("options", [{}, {"lr_scheduler_type": "constant_with_warmup"}, {"cooldown": 0.5}])
def test_a_resumed_training_of_steps_keeps_the_cut_of_its_warm_up(run, options):
    for name, value in options.items():
        setattr(run.args, name, value)
    assert WarmupCooldown in map(type, run._schedule())


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ({}, ("constant", 4000, 1.0)),
        ({"warmup_steps": 4000}, ("inverse_sqrt", 4000, 1.0)),  # named, although it is the default
        ({"learning_rate_factor": 1.0}, ("inverse_sqrt", 4000, 1.0)),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 9}, ("constant_with_warmup", 9, 1.0)),
    ],
)
def test_fine_tuning_has_the_schedule_of_the_options_that_were_named(tmp_path, options, schedule):
    args = FineTuningArguments(str(tmp_path), use_cpu=True, report_to="none", **options)
    assert (args.lr_scheduler_type, args.warmup_steps, args.learning_rate_factor) == schedule
