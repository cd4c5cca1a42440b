"""SIGTERM and SIGINT end training with a complete checkpoint, from which it goes on as if undisturbed."""

import multiprocessing.connection
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from distributed_step import DROPOUT, assert_equal_weights, make_model, make_trainer
from helpers import run_python
from transformers import TrainerCallback

from vaswani_transformer import CheckpointAveraging, VaswaniTokenizer, VaswaniTrainer
from vaswani_transformer.system.faults import Interrupted
from vaswani_transformer.training import signals
from vaswani_transformer.training.averaging import checkpoints_to_average
from vaswani_transformer.training.signals import SignalCheckpoint


pytestmark = pytest.mark.system
STEPS = 8
SCHEDULED = {"save_strategy": "steps", "save_steps": 3, "max_steps": STEPS}
WORKERS = {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 1}


class SendSignal(TrainerCallback):
    """Sends this process a signal in an event of a step."""

    def __init__(self, event: str, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.step, self.number = step, number
        setattr(self, event, self._send)

    def _send(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupt(tokenizer: Any, folder: Path, *callbacks: TrainerCallback, **settings: Any) -> Interrupted:
    """Train until a callback's signal ends the training."""
    with SignalCheckpoint() as signal_checkpoint:
        trainer = make_trainer(
            make_model(DROPOUT), tokenizer, folder, callbacks=[*callbacks, signal_checkpoint], **settings
        )
        with pytest.raises(Interrupted) as caught:
            trainer.train()
    return caught.value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_training_goes_on_as_if_it_had_not_been_interrupted(tokenizer, tmp_path, number):
    whole = CheckpointAveraging(2)
    undisturbed = make_trainer(make_model(DROPOUT), tokenizer, tmp_path / "whole", callbacks=[whole], **SCHEDULED)
    undisturbed.train()
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]

    folder, averaging = tmp_path / "parts", CheckpointAveraging(2)
    error = interrupt(tokenizer, folder, averaging, SendSignal("on_step_begin", 6, number), **SCHEDULED)
    assert error.status == 128 + number
    assert str(error) == ""
    assert checkpoints(folder) == ["checkpoint-3", "checkpoint-6", "checkpoint-7"]
    assert averaging.averaged == []
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers

    averaging = CheckpointAveraging(2)
    resumed = make_trainer(make_model(DROPOUT), tokenizer, folder, callbacks=[averaging], **SCHEDULED)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-7"))
    names = [[directory.name for directory in each.averaged] for each in (whole, averaging)]
    assert names[0] == names[1] == ["checkpoint-6", "checkpoint-8"]
    assert [*checkpoints_to_average(folder)] == [3, 6, 8]
    assert_equal_weights(resumed.model.state_dict(), undisturbed.model.state_dict())


def test_a_training_that_is_to_end_where_it_was_interrupted_ends_with_that_step(tokenizer, tmp_path):
    interrupt(tokenizer, tmp_path, CheckpointAveraging(1), SendSignal("on_step_begin", 4), **SCHEDULED)
    averaging, settings = CheckpointAveraging(1), {**SCHEDULED, "max_steps": 5}
    resumed = make_trainer(make_model(DROPOUT), tokenizer, tmp_path, callbacks=[averaging], **settings)
    resumed.train(resume_from_checkpoint=True)
    assert averaging.averaged == [tmp_path / "checkpoint-5"]
    assert [*checkpoints_to_average(tmp_path)] == [3, 5]


def evaluations(trainer: VaswaniTrainer) -> list[tuple[float, ...]]:
    """Step, epoch and loss of each logged evaluation, in order."""
    lines = [line for line in trainer.state.log_history if "eval_loss" in line]
    return [(line["step"], line["epoch"], line["eval_loss"]) for line in lines]


@pytest.mark.parametrize(
    ("event", "step", "strategy", "saved"),
    [
        ("on_step_begin", 4, "steps", 5),
        ("on_step_begin", 4, "epoch", 5),
        ("on_prediction_step", 5, "steps", 5),
        ("on_prediction_step", 5, "epoch", 6),  # the evaluation comes after the end of the epoch
    ],
)
def test_an_interrupted_training_evaluates_at_the_same_steps(tokenizer, tmp_path, event, step, strategy, saved):
    """An epoch has five steps."""
    settings = {"eval_strategy": strategy, "eval_steps": 5, "num_train_epochs": 2, "save_strategy": "epoch"}
    undisturbed = make_trainer(make_model(DROPOUT), tokenizer, tmp_path / "whole", **settings)
    undisturbed.train()
    assert [step for step, *_ in evaluations(undisturbed)] == [5, 10]
    folder = tmp_path / "parts"
    interrupt(tokenizer, folder, SendSignal(event, step), **settings)
    assert checkpoints(folder)[-1] == f"checkpoint-{saved}"
    assert [*checkpoints_to_average(folder)] == [*{5, saved}]
    resumed = make_trainer(make_model(DROPOUT), tokenizer, folder, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert evaluations(resumed) == evaluations(undisturbed)
    assert_equal_weights(resumed.model.state_dict(), undisturbed.model.state_dict())


@pytest.mark.parametrize(
    ("event", "step", "settings", "saved"),
    [
        ("on_step_begin", 1, {"save_strategy": "no"}, ["checkpoint-2"]),
        ("on_evaluate", 5, {"save_strategy": "no", "eval_strategy": "epoch"}, ["checkpoint-6"]),
        ("on_save", 3, SCHEDULED, ["checkpoint-3", "checkpoint-4"]),
        ("on_step_end", STEPS, SCHEDULED, ["checkpoint-3", "checkpoint-6", f"checkpoint-{STEPS}"]),
    ],
)
def test_signals_at_any_moment_of_training(tokenizer, tmp_path, event, step, settings, saved):
    interrupt(tokenizer, tmp_path, SendSignal(event, step), **settings)
    assert checkpoints(tmp_path) == saved


def test_a_second_signal_does_not_wait_for_the_end_of_the_step(tokenizer, tmp_path, monkeypatch):
    class SendTwo(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # the same, which a launcher has forwarded
            monkeypatch.setattr(signals, "_SAME_SIGNAL", 0.0)
            time.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)

    error = interrupt(tokenizer, tmp_path, SendTwo(), save_strategy="no")
    assert (error.status, str(error)) == (143, "interrupted before the first checkpoint; repeat the command")
    assert checkpoints(tmp_path) == []


class SignalAll(TrainerCallback):
    """Sends this process and its loaders' workers signals in an evaluation, as a terminal and some schedulers do."""

    def __init__(self) -> None:
        self.of_earlier_tests = multiprocessing.active_children()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not hasattr(self, "workers"):
            self.workers = [each for each in multiprocessing.active_children() if each not in self.of_earlier_tests]
            for process in [*self.workers, multiprocessing.current_process()]:
                for number in (signal.SIGINT, signal.SIGTERM):
                    os.kill(process.pid, number)
            self.ended = multiprocessing.connection.wait([each.sentinel for each in self.workers], 0.3)


def test_loaders_survive_signals_to_all_processes(tokenizer, tmp_path):
    """Workers of both loaders survive, the training's and the evaluation's."""
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 1, "save_strategy": "no"}
    interrupt(tokenizer, tmp_path, everyone := SignalAll(), **WORKERS, **settings)
    assert checkpoints(tmp_path) == ["checkpoint-2"]
    assert (len(everyone.workers), everyone.ended) == (2, [])


def test_a_program_ends_although_its_loaders_have_workers(saved_model, tmp_path):
    """It ends both after a training that ended and after one that failed. The time limit only catches a hang."""
    finished = run_python([__file__, saved_model, tmp_path], timeout=120)
    assert finished.returncode == 1
    assert finished.stdout.endswith("the training has ended\n")
    assert finished.stderr.endswith("ValueError: on purpose\n")


def test_outside_training_a_signal_acts_at_once_and_ends_a_forked_process():
    with SignalCheckpoint():
        with pytest.raises(Interrupted, match="before the first checkpoint"):
            signal.raise_signal(signal.SIGTERM)
        if (child := os.fork()) == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


class Fail(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise ValueError("on purpose")


if __name__ == "__main__":
    tokenizer, folder = VaswaniTokenizer.from_pretrained(sys.argv[1]), Path(sys.argv[2])
    settings = {**WORKERS, "eval_strategy": "epoch", "disable_tqdm": True}
    ended = make_trainer(make_model(DROPOUT), tokenizer, folder, dataloader_persistent_workers=True, **settings)
    ended.train()
    print("the training has ended")
    failed = make_trainer(make_model(DROPOUT), tokenizer, folder, callbacks=[Fail()], **settings)
    failed.train()
