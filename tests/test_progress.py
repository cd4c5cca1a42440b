"""The progress bar that says what a training is worth looking at for."""

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from vaswani_transformer import VaswaniTrainer
from vaswani_transformer.training import TrainingProgress, VaswaniTrainingArguments


class Spy(TrainerCallback):
    """Keeps the bar, which is closed and forgotten when training ends, and what it shows after each log."""

    def __init__(self, progress: TrainingProgress) -> None:
        self.progress = progress
        self.postfixes: list[dict[str, str]] = []

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        self.bar = self.progress.training_bar
        self.postfixes.append(dict(entry.split("=") for entry in self.bar.postfix.split(", ")))


@pytest.fixture
def args(tmp_path: Path) -> VaswaniTrainingArguments:
    return VaswaniTrainingArguments(
        str(tmp_path),
        source_tokens=16,
        target_tokens=16,
        max_steps=3,
        logging_steps=1,
        learning_rate=0.00125,
        lr_scheduler_type="constant",
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )


def test_bar_carries_what_is_logged(
    args: VaswaniTrainingArguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, capfd: Any
) -> None:
    rows = Dataset.from_list([{"input_ids": [5, 6, 1][-n:], "labels": [7, 8, 9, 1][-n:]} for n in (2, 3, 3, 4)])
    trainer = VaswaniTrainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    trainer.remove_callback(ProgressCallback)
    progress = TrainingProgress()
    spy = Spy(progress)
    trainer.add_callback(progress)
    trainer.add_callback(spy)
    trainer.train()

    first, second, *_ = (entry for entry in trainer.state.log_history if "loss" in entry)
    evaluation = next(entry for entry in trainer.state.log_history if "eval_loss" in entry)
    expected = {
        "loss": f"{first['loss']:.3f}",
        "lr": "1.25e-03",
        "tok/s": f"{first['target_tokens_per_second']:.0f}",
        "padding": f"{100 * trainer.batch_sampler.padding_share:.1f}%",
    }
    assert spy.postfixes[0] == expected
    expected |= {"loss": f"{second['loss']:.3f}", "tok/s": f"{second['target_tokens_per_second']:.0f}"}
    assert spy.postfixes[1] == expected
    assert spy.postfixes[2] == {**expected, "eval_loss": f"{evaluation['eval_loss']:.3f}"}
    assert list(spy.postfixes[2]) == ["loss", "eval_loss", "lr", "tok/s", "padding"]
    assert (spy.bar.n, spy.bar.total) == (3, 3)
    assert progress.training_bar is None, "closed"
    assert "'loss':" not in capfd.readouterr().out, "the trainer's own lines are gone"


def test_a_second_training_shows_nothing_of_the_first(args: VaswaniTrainingArguments) -> None:
    progress, state, control = TrainingProgress(), TrainerState(max_steps=3), TrainerControl()
    progress.on_train_begin(args, state, control)
    progress.on_log(args, state, control, logs={"loss": 1.0, "eval_loss": 2.0})
    progress.on_train_end(args, state, control)
    progress.on_train_begin(args, state, control)
    progress.on_log(args, state, control, logs={"loss": 3.0})
    assert progress.training_bar.postfix == "loss=3.000"
    progress.on_train_end(args, state, control)


def test_other_processes_show_nothing(args: VaswaniTrainingArguments, capfd: Any) -> None:
    progress = TrainingProgress()
    state, control = TrainerState(max_steps=3, is_world_process_zero=False), TrainerControl()
    progress.on_train_begin(args, state, control)
    progress.on_step_end(args, state, control)
    progress.on_log(args, state, control, logs={"loss": 1.0})
    progress.on_train_end(args, state, control)
    assert progress.training_bar is None
    assert capfd.readouterr() == ("", "")


def test_evaluation_without_training_shows_no_training_bar(args: VaswaniTrainingArguments) -> None:
    progress = TrainingProgress()
    progress.on_log(args, TrainerState(), TrainerControl(), logs={"eval_loss": 1.0})
    assert progress.training_bar is None
