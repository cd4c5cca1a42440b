"""The progress bar that says what a training is worth looking at for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from transformers import ProgressCallback, TrainerControl, TrainerState

from vaswani_transformer import VaswaniTrainer
from vaswani_transformer.training import callbacks
from vaswani_transformer.training.callbacks import ProgressBar, TrainingProgress
from vaswani_transformer.training.trainer import VaswaniTrainingArguments


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
    lines = [line.split("  ") for line in shown.err.splitlines() if "/3  " in line]
    logged = [(entry["step"], fields(entry)) for entry in trainer.state.log_history if fields(entry)]
    assert [(int(line[0].split("/")[0]), line[3:-1]) for line in lines] == logged
    assert [line[1] for line in lines] == ["33%", "67%", "67%", "100%", "100%"]


def test_a_limit_in_time_is_what_is_counted_if_it_comes_first(args, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now))
    bar = ProgressBar(total=200_000, initial=100, limit=900.0)
    now += 300
    assert bar.line(400) == "5.0/15 min, step 400  33%  05:00<10:00  1.00/s"
    assert bar.line(199_900) == "199900/200000  100%  05:00<00:00  666.00/s"
    resumed = ProgressBar(total=200_000, initial=100, limit=900.0, passed=450.0)
    now += 300
    assert resumed.line(400) == "12.5/15 min, step 400  83%  05:00<02:30  1.00/s"
    assert ProgressBar(total=10, limit=None).line(0) == "0/10  0%  00:00<?  0.00/s"


def test_evaluation_without_training_shows_no_training_bar(args):
    progress = TrainingProgress()
    progress.on_log(args, TrainerState(), TrainerControl(), logs={"eval_loss": 1.0})
    assert progress.training_bar is None
