"""SIGTERM and SIGINT: they end training with a complete checkpoint, and other work immediately."""

import os
import signal
import time
from multiprocessing.sharedctypes import RawValue
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..system.faults import Interrupted
from .callbacks import may_synchronize


SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STATE = "signal_checkpoints"  # name in `TrainerState.stateful_callbacks`
# A launcher forwards a signal to ranks that may have received it already: within this time, both count as one.
_SAME_SIGNAL = 3.0  # seconds


class SignalCheckpoint(TrainerCallback):
    """Turns SIGTERM and SIGINT into `Interrupted`: a context manager and a trainer callback.

    During training, a signal on any rank makes all ranks finish the same step, with its evaluation if one is due, and
    save a checkpoint, whatever `save_strategy` says; then `train()` raises. A second signal, more than three seconds
    after the first, raises immediately, as does a signal before or after training.

    A checkpoint saved only because of a signal is not averaged, so that the final weights equal the weights of an
    uninterrupted training.

        with SignalCheckpoint() as signal_checkpoint:
            trainer.add_callback(signal_checkpoint)
            trainer.train()
    """

    def __init__(self) -> None:
        self._number = 0  # of the first signal
        self._received = 0.0
        self._training = self._stopping = False
        self._saved = 0  # step of the newest checkpoint

    def __enter__(self) -> "SignalCheckpoint":
        self._process = os.getpid()
        self._handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked process, such as a worker of `datasets`
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        is_second = self._number and time.monotonic() - self._received > _SAME_SIGNAL
        if not self._number:
            self._number, self._received = number, time.monotonic()
        if is_second or not self._training:
            raise self._interrupted()

    def _interrupted(self) -> Interrupted:
        number = self._number or signal.SIGTERM  # another rank received it
        return Interrupted(number, "" if self._saved else "interrupted before the first checkpoint; repeat the command")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._training, self._stopping, self._saved = True, False, state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        is_epoch_end = float(state.epoch or 0).is_integer()  # then `on_epoch_end` may evaluate and save
        if may_synchronize(args, state.global_step) and not is_epoch_end:
            self._stop_if_signalled(args, state, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop_if_signalled(args, state, control)

    def _stop_if_signalled(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        if not self._is_signalled(args):
            return
        if not control.should_save and self._saved != state.global_step:
            steps = [*signal_steps(state), state.global_step]
            state.stateful_callbacks[_STATE] = {"args": {}, "attributes": {"steps": steps}}
        self._stopping = control.should_save = control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._saved = state.global_step
        if self._stopping:
            raise self._interrupted()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._training = False
        if self._is_signalled(args):
            raise self._interrupted()

    def _is_signalled(self, args: TrainingArguments) -> bool:
        """Whether any rank has received a signal. Collective."""
        flag = torch.tensor(int(bool(self._number)), device=args.device if args.world_size > 1 else "cpu")
        if args.world_size > 1:
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return bool(flag)


def signal_steps(state: TrainerState) -> list[int]:
    """Steps whose checkpoints were saved only because of a signal, including those before training was resumed."""
    return (state.stateful_callbacks or {}).get(_STATE, {}).get("attributes", {}).get("steps", [])


class LoaderSignals:
    """A `worker_init_fn`: while its context is active, data-loader workers ignore SIGINT and SIGTERM.

    A signal to all processes of a training must not end its workers, since the last step still needs them. After the
    training SIGTERM ends them: multiprocessing sends it when the program ends, and waits for them.
    """

    def __init__(self) -> None:
        self._is_training = RawValue("b", False)  # in memory that this process shares with the workers

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_training.value:
            os._exit(0)  # with another status PyTorch would report a failed worker

    def __enter__(self) -> None:
        self._is_training.value = True

    def __exit__(self, *error: object) -> None:
        self._is_training.value = False
