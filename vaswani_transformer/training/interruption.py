"""Interruption: SIGTERM and SIGINT end training with a complete checkpoint, and anything else at once."""

import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .watchdog import Watchdog


SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STATE = "interruptions"  # name in `TrainerState.stateful_callbacks`
# Launchers forward a signal that the ranks may have received themselves, so one that follows closely is the same.
_SAME_SIGNAL = 3.0  # seconds
_UNWINDING = 5.0  # seconds


def _message(resumable: bool) -> str:
    return (
        "interrupted; continue with --resume"
        if resumable
        else "interrupted before the first checkpoint; repeat the command"
    )


class Interrupted(KeyboardInterrupt):
    """A signal has ended the work; if that was training, its last step is in a checkpoint.

    Attributes:
        signal: The signal.
        status: Exit status by the shell's convention, 128 + the signal's number.
    """

    def __init__(self, number: int, resumable: bool) -> None:
        super().__init__(_message(resumable))
        self.signal = signal.Signals(number)
        self.status = 128 + number


class EvaluationInterrupted(Interrupted):
    """A signal has ended an evaluation while training, on all ranks; the trainer has yet to save its step."""


class Interruption(TrainerCallback):
    """Turns SIGTERM and SIGINT into `Interrupted`, inside its context and as a callback of a trainer.

    While the trainer trains, a signal on any rank makes all ranks finish the same step and save a checkpoint, whatever
    `save_strategy` says; then `train()` raises. Outside, for example while data are prepared, it raises at once. A
    second signal, more than three seconds later, ends the process on the spot. A checkpoint that only an interruption
    asked for is not averaged, so that interrupted trainings end with the weights of undisturbed ones. An evaluation is
    cut short, or left out, and made up for when training is resumed.

        with Interruption() as interruption:
            trainer.add_callback(interruption)
            trainer.train()

    Args:
        watchdog: Prints what is said on one rank alone.
    """

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog
        self._number = 0  # of the first signal
        self._training = False
        self._resumable = False  # there is a checkpoint
        self._stopping = False
        self._began = self._saved = 0  # steps: that training began at, and that of the newest checkpoint
        self._epoch_ends = False  # so `on_epoch_end` follows; it may evaluate or save, and a resumed training skips it
        self._flag: torch.Tensor | None = None

    def __enter__(self) -> "Interruption":
        global _active
        self._reading, self._written = socket.socketpair()
        self._written.setblocking(False)
        self._handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        # The main thread may be in a collective operation, where Python runs no handlers. This thread runs anyway.
        threading.Thread(target=self._watch, name="interruption", daemon=True).start()
        _active = True
        return self

    def __exit__(self, *error: object) -> None:
        global _active
        _active = False
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._written.close()  # ends the thread

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self._number
        self._number = self._number or number
        if first and not self._training:
            raise Interrupted(number, self._resumable)

    def _watch(self) -> None:
        since: float | None = None
        with self._reading:
            while received := self._reading.recv(1):
                number = received[0]
                if number not in SIGNALS:
                    continue
                if since is None:
                    since = time.monotonic()
                    if not self._training:
                        threading.Timer(_UNWINDING, self._end, (number,)).start()
                elif time.monotonic() - since > _SAME_SIGNAL and not (self._watchdog and self._watchdog.orphaned):
                    self._end(number)

    def _end(self, number: int) -> None:
        if self._written.fileno() == -1:  # the context has ended in the meantime
            return
        if self._watchdog is not None:
            self._watchdog.announce(_message(self._resumable))
        os._exit(128 + number)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._training, self._stopping, self._epoch_ends, self._flag = True, False, False, None
        self._began, self._saved, self._resumable = state.global_step, state.global_step, state.global_step > 0
        if self._resumable:  # other checkpoints are of after an evaluation, whose log line they have
            args.eval_on_start = _lacks_evaluation(args, state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._training = False
        if self._number:
            raise Interrupted(self._number, self._resumable)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._epoch_ends = control.should_training_stop or float(state.epoch or 0).is_integer()
        if self._epoch_ends:
            return
        asked, before = self._ask(args), self._flag
        self._flag = asked
        # A GPU's answer is read a step later, when the host need not wait for it.
        if bool(asked if asked.device.type == "cpu" else before):
            self._stop(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._epoch_ends = False
        if bool(self._ask(args)):
            self._stop(args, state, control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self._training or not bool(self._ask(args)):
            return
        if state.global_step == self._began:  # nothing to save
            raise Interrupted(self._number or signal.SIGTERM, self._resumable)
        self._stop(args, state, control)
        raise EvaluationInterrupted(self._number or signal.SIGTERM, self._resumable)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._training and not self._epoch_ends and bool(self._ask(args)):
            self._stop(args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._resumable, self._saved = True, state.global_step
        if self._stopping or (not self._epoch_ends and bool(self._ask(args))):
            PartialState().wait_for_everyone()
            raise Interrupted(self._number or signal.SIGTERM, self._resumable)

    def _ask(self, args: TrainingArguments) -> torch.Tensor:
        """Whether any rank has received a signal; a collective operation."""
        flag = torch.full((), int(bool(self._number)), device=args.device)
        if args.world_size > 1:
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return flag

    def _stop(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        of_epoch = self._epoch_ends and args.save_strategy == "epoch"
        is_scheduled = control.should_save or of_epoch or self._saved == state.global_step
        steps = interruption_steps(state) + ([] if is_scheduled else [state.global_step])
        unevaluated = state.global_step if control.should_evaluate else None
        state.stateful_callbacks[_STATE] = {"args": {}, "attributes": {"steps": steps, "unevaluated": unevaluated}}
        self._stopping = control.should_save = control.should_training_stop = True
        control.should_evaluate = False  # it may take longer than the grace period


def interruption_steps(state: TrainerState) -> list[int]:
    """Steps whose checkpoints only interruptions asked for, in this training and in those that it resumed."""
    return _attributes(state).get("steps", [])


def _lacks_evaluation(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether an interruption has left out, or cut short, the evaluation of this very step."""
    return args.eval_strategy != "no" and _attributes(state).get("unevaluated") == state.global_step


def _attributes(state: TrainerState) -> dict[str, Any]:
    saved = (state.stateful_callbacks or {}).get(_STATE)
    return saved["attributes"] if isinstance(saved, dict) else {}


def ignore_signals(worker: int) -> None:
    """Let a loader's worker, for `worker_init_fn`, outlive a signal to all processes: the last step needs it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


_active = False


def _restore_defaults() -> None:
    if _active:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)


# A forked process would pass its signals on to its parent, and not end when it is terminated.
os.register_at_fork(after_in_child=_restore_defaults)
