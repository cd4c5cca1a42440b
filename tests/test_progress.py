"""The progress bar that says what a training is worth looking at for."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from helpers import Terminal
from transformers import ProgressCallback

from vaswani_transformer import VaswaniTrainer
from vaswani_transformer.options.training import VaswaniTrainingArguments
from vaswani_transformer.training.callbacks import TrainingProgress


pytestmark = pytest.mark.system


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


def train(args: VaswaniTrainingArguments, model: Any, tokenizer: Any, minutes: float | None = None) -> VaswaniTrainer:
    rows = Dataset.from_list([{"input_ids": [5, 6, 1][-n:], "labels": [7, 8, 9, 1][-n:]} for n in (2, 3, 3, 4)])
    trainer = VaswaniTrainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(TrainingProgress(minutes))
    trainer.train()
    return trainer


def fields(entry: dict[str, float]) -> list[str]:
    forms = {"loss": "loss={:.3f}", "eval_loss": "eval_loss={:.3f}", "learning_rate": "lr={:.2e}"}
    forms |= {"target_tokens_per_second": "tok/s={:.0f}", "padding_share": "padding={:.1%}"}
    return [form.format(entry[name]) for name, form in forms.items() if name in entry]


def test_in_a_pipe_each_log_is_a_line(args, model, tokenizer, capsys):
    trainer = train(args, model, tokenizer)
    shown = capsys.readouterr()
    assert shown.out == "", "the trainer's own lines are gone"
    assert "\r" not in shown.err
    lines = [line for line in shown.err.splitlines() if "/3  " in line]
    logged = [(entry["step"], fields(entry)) for entry in trainer.state.log_history]
    assert lines == [f"{step}/3  {'  '.join(values)}" for step, values in logged if values]


def test_in_a_pipe_a_training_of_minutes_counts_them(args, model, tokenizer, capsys):
    train(args, model, tokenizer, minutes=10)
    assert re.search(r"^2 steps, \d\.\d/10 min  loss=", capsys.readouterr().err, re.M)


@pytest.mark.parametrize("minutes", [None, 10.0])
def test_a_terminal_shows_one_bar_of_steps_or_minutes(minutes, args, model, tokenizer, monkeypatch):
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, "200")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen := Terminal())
        train(args, model, tokenizer, minutes)
    start = r"3/3  100%" if minutes is None else r"\d\.\d/10 min  \d+%"
    assert re.search(rf"{start}.*loss=\d\.\d+  lr=1\.25e-03  tok/s=\d+  padding=\d+", screen.getvalue())
