"""SIGTERM and SIGINT end training with a complete checkpoint, from which it goes on as if undisturbed."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from distributed_step import make_trainer
from transformers import TrainerCallback

from vaswani_transformer import CheckpointAveraging, VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTrainer
from vaswani_transformer.launch.interruption import Interrupted, Interruption, interruption_steps
from vaswani_transformer.training.averaging import checkpoints_to_average


pytestmark = pytest.mark.system
STEPS = 8
EVERY_FIFTH = {"eval_strategy": "steps", "eval_steps": 5}  # an epoch has as many
EVERY_EPOCH = {"eval_strategy": "epoch", "save_strategy": "epoch"}
SCHEDULED = {"save_strategy": "steps", "save_steps": 3, "max_steps": STEPS}


def make_model() -> VaswaniForConditionalGeneration:
    torch.manual_seed(0)
    return VaswaniForConditionalGeneration(
        VaswaniConfig(vocab_size=37, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.1)
    )


class SendSignal(TrainerCallback):
    """Sends this process a signal in an event of a step."""

    def __init__(self, event: str, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.step, self.number, self.count = step, number, 0
        setattr(self, event, self._send)

    def _send(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.count += 1
            os.kill(os.getpid(), self.number)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_training_goes_on_as_if_it_had_not_been_interrupted(tokenizer, tmp_path, number):
    whole = CheckpointAveraging(2)
    undisturbed = make_trainer(make_model(), tokenizer, tmp_path / "whole", callbacks=[whole], **SCHEDULED)
    undisturbed.train()
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]

    folder, averaging = tmp_path / "parts", CheckpointAveraging(2)
    with Interruption() as interruption:
        callbacks = [averaging, SendSignal("on_step_begin", 6, number), interruption]
        trainer = make_trainer(make_model(), tokenizer, folder, callbacks=callbacks, **SCHEDULED)
        with pytest.raises(Interrupted) as caught:
            trainer.train()
    assert caught.value.status == 128 + number
    assert str(caught.value) == "interrupted; continue with --resume"
    assert checkpoints(folder) == ["checkpoint-3", "checkpoint-6", "checkpoint-7"]
    assert averaging.averaged == []
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers

    averaging = CheckpointAveraging(2)
    resumed = make_trainer(make_model(), tokenizer, folder, callbacks=[averaging], **SCHEDULED)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-7"))
    names = [[directory.name for directory in each.averaged] for each in (whole, averaging)]
    assert names[0] == names[1] == ["checkpoint-6", "checkpoint-8"]
    assert [*checkpoints_to_average(folder)] == [3, 6, 8]
    for name, weight in undisturbed.model.state_dict().items():
        assert weight.equal(resumed.model.state_dict()[name]), name


def test_a_training_that_is_to_end_where_it_was_interrupted_ends_with_that_step(tokenizer, tmp_path):
    with Interruption() as interruption:
        callbacks = [CheckpointAveraging(1), SendSignal("on_step_begin", 4), interruption]
        trainer = make_trainer(make_model(), tokenizer, tmp_path, callbacks=callbacks, **SCHEDULED)
        with pytest.raises(Interrupted):
            trainer.train()
    averaging, settings = CheckpointAveraging(1), {**SCHEDULED, "max_steps": 5}
    resumed = make_trainer(make_model(), tokenizer, tmp_path, callbacks=[averaging], **settings)
    resumed.train(resume_from_checkpoint=True)
    assert averaging.averaged == [tmp_path / "checkpoint-5"]
    assert [*checkpoints_to_average(tmp_path)] == [3, 5]


def evaluations(trainer: VaswaniTrainer) -> list[tuple[float, ...]]:
    """Of each logged evaluation the step, the epoch and the loss, in order."""
    lines = [line for line in trainer.state.log_history if "eval_loss" in line]
    return [(line["step"], line["epoch"], line["eval_loss"]) for line in lines]


@pytest.mark.parametrize("event", ["on_step_begin", "on_prediction_step"])
@pytest.mark.parametrize(
    "settings",
    [
        EVERY_FIFTH,
        EVERY_EPOCH,
        {**EVERY_EPOCH, **EVERY_FIFTH},
        {**EVERY_EPOCH, "save_strategy": "steps", "save_steps": 5},
    ],
)
def test_an_evaluation_is_cut_short_and_made_up_for(tokenizer, tmp_path, event, settings):
    settings = {**settings, "num_train_epochs": 2, "per_device_eval_batch_size": 1}
    undisturbed = make_trainer(make_model(), tokenizer, tmp_path / "whole", **settings)
    undisturbed.train()
    assert [step for step, *_ in evaluations(undisturbed)] == [5, 10]

    predictions, folder = SendSignal(event, 4 if event == "on_step_begin" else 5), tmp_path / "parts"
    with Interruption() as interruption:
        trainer = make_trainer(make_model(), tokenizer, folder, callbacks=[predictions, interruption], **settings)
        with pytest.raises(Interrupted):
            trainer.train()
    assert checkpoints(folder) == ["checkpoint-5"]
    assert predictions.count <= 1
    assert evaluations(trainer) == []
    assert interruption_steps(trainer.state) == ([] if "save_strategy" in settings else [5])

    with Interruption() as interruption:
        resumed = make_trainer(make_model(), tokenizer, folder, callbacks=[interruption], **settings)
        resumed.train(resume_from_checkpoint=str(folder / "checkpoint-5"))
    assert evaluations(resumed) == evaluations(undisturbed)
    for name, weight in undisturbed.model.state_dict().items():
        assert weight.equal(resumed.model.state_dict()[name]), name


def test_the_evaluation_of_the_last_step_is_made_up_for(tokenizer, tmp_path):
    settings = {"eval_strategy": "epoch", "num_train_epochs": 1, "max_steps": 5}
    undisturbed = make_trainer(make_model(), tokenizer, tmp_path / "whole", **settings)
    undisturbed.train()
    with Interruption() as interruption:
        callbacks = [SendSignal("on_prediction_step", 5), interruption]
        trainer = make_trainer(make_model(), tokenizer, tmp_path / "parts", callbacks=callbacks, **settings)
        with pytest.raises(Interrupted):
            trainer.train()
    with Interruption() as interruption:
        resumed = make_trainer(make_model(), tokenizer, tmp_path / "parts", callbacks=[interruption], **settings)
        resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 5
    assert evaluations(resumed) == evaluations(undisturbed) != []


def test_an_evaluation_that_is_made_up_for_may_be_cut_short(tokenizer, tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 1}
    for resume in (None, str(tmp_path / "checkpoint-3")):
        with Interruption() as interruption:
            callbacks = [SendSignal("on_prediction_step", 3), interruption]
            trainer = make_trainer(make_model(), tokenizer, tmp_path, callbacks=callbacks, **settings)
            with pytest.raises(Interrupted, match="continue with --resume"):
                trainer.train(resume_from_checkpoint=resume)
        assert trainer.state.global_step == 3
        assert evaluations(trainer) == []
        assert checkpoints(tmp_path) == ["checkpoint-3"]


@pytest.mark.parametrize(
    ("event", "step", "settings", "saved"),
    [
        ("on_step_begin", 1, {"save_strategy": "no"}, ["checkpoint-2"]),
        ("on_evaluate", 5, {"save_strategy": "no", "eval_strategy": "epoch"}, ["checkpoint-5"]),
        ("on_prediction_step", 5, {"save_strategy": "no", "eval_strategy": "epoch"}, ["checkpoint-5"]),
        ("on_save", 3, SCHEDULED, ["checkpoint-3"]),
        ("on_step_end", STEPS, SCHEDULED, ["checkpoint-3", "checkpoint-6", f"checkpoint-{STEPS}"]),
    ],
)
def test_signals_at_any_moment_of_training(tokenizer, tmp_path, event, step, settings, saved):
    with Interruption() as interruption:
        callbacks = [SendSignal(event, step), interruption]
        trainer = make_trainer(make_model(), tokenizer, tmp_path, callbacks=callbacks, **settings)
        with pytest.raises(Interrupted):
            trainer.train()
    assert checkpoints(tmp_path) == saved


class SendSignalToAll(TrainerCallback):
    """Sends this process and its children a signal in a step, as a terminal does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            children = psutil.Process().children()
            assert children
            for process in (*children, psutil.Process()):
                process.send_signal(signal.SIGINT)
            for process in children:
                with suppress(psutil.TimeoutExpired):
                    process.wait(1)


def test_a_loader_survives_a_signal_to_all_processes(tokenizer, tmp_path):
    with Interruption() as interruption:
        callbacks = [SendSignalToAll(1), interruption]
        settings = {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 1, "save_strategy": "no"}
        trainer = make_trainer(make_model(), tokenizer, tmp_path, callbacks=callbacks, **settings)
        with pytest.raises(Interrupted, match="continue with --resume"):
            trainer.train()
    assert checkpoints(tmp_path) == ["checkpoint-2"]


def test_outside_training_a_signal_acts_at_once():
    with Interruption(), pytest.raises(Interrupted, match="before the first checkpoint") as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.status == 143


def test_its_thread_ends_with_it():
    for _ in range(50):
        with Interruption():
            pass
        assert "interruption" not in {thread.name for thread in threading.enumerate()}
