"""SIGTERM and SIGINT end training with a complete checkpoint, and other work at once."""

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

from .ending import Ending


SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STATE = "interruptions"  # name in `TrainerState.stateful_callbacks`
# A launcher forwards a signal to ranks that may have received it already: within this time, both count as one.
_SAME_SIGNAL = 3.0  # seconds
_UNWINDING = 5.0  # seconds allowed for the exception to propagate before the process is ended
_MESSAGES = {  # by whether there is a checkpoint
    True: "interrupted; continue with --resume",
    False: "interrupted before the first checkpoint; repeat the command",
}


class Interrupted(KeyboardInterrupt):
    """A signal has ended the work. The last step of a training is in a checkpoint.

    Attributes:
        status: Exit status by the shell's convention, 128 + the signal's number.
    """

    def __init__(self, number: int, resumable: bool) -> None:
        super().__init__(_MESSAGES[resumable])
        self.status = 128 + number


class EvaluationInterrupted(Interrupted):
    """A signal has ended an evaluation during training, on all ranks, before the trainer saved its step."""


class Interruption(TrainerCallback):
    """Turns SIGTERM and SIGINT into `Interrupted`: a context manager and a trainer callback.

    During training, a signal on any rank makes all ranks finish the same step and save a checkpoint, whatever
    `save_strategy` says; then `train()` raises. Before and after training, for example while data are prepared, the
    signal raises at once. A second signal, more than three seconds after the first, ends the process
    immediately.

    A checkpoint that was saved only because of a signal is not averaged, so that the final weights equal those of an
    uninterrupted training. An evaluation is cut short, or skipped, and repeated when training is resumed.

        with Interruption() as interruption:
            trainer.add_callback(interruption)
            trainer.train()

    Args:
        ending: Prints the message, on one rank only.
    """

    def __init__(self, ending: Ending | None = None) -> None:
        self._ending = ending
        self._number = 0  # of the first signal
        self._training = False
        self._resumable = False  # whether there is a checkpoint
        self._stopping = False
        self._began = self._saved = 0  # the steps at which training began, and of the newest checkpoint
        self._epoch_ends = False  # `on_epoch_end` comes next: it may evaluate or save; a resumed training skips it
        self._pending: tuple[torch.Tensor, torch.Event] | None = None  # a GPU's answer, and when it is copied

    def __enter__(self) -> "Interruption":
        global _active
        self._reading, self._written = socket.socketpair()
        self._written.setblocking(False)
        self._handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        # Python runs no handlers while the main thread is in a collective operation. This thread runs anyway.
        self._watching = threading.Thread(target=self._watch, name="interruption", daemon=True)
        self._watching.start()
        _active = True
        return self

    def __exit__(self, *error: object) -> None:
        global _active
        _active = False
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._written.close()  # ends the thread
        # It refers to this object. As the last to do so, it would free the flag, a tensor; if Python exits meanwhile,
        # that aborts the process.
        self._watching.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self._number
        self._number = self._number or number
        if first and not self._training:
            raise Interrupted(number, self._resumable)

    def _watch(self) -> None:
        since, parent = None, os.getppid()
        with self._reading:
            while received := self._reading.recv(1):
                number = received[0]
                if number not in SIGNALS:
                    continue
                if since is None or os.getppid() != parent:  # the launcher has died: see `end_with_launcher`
                    since, parent = time.monotonic(), os.getppid()
                    if not self._training:
                        threading.Timer(_UNWINDING, self._end, (number,)).start()
                elif time.monotonic() - since > _SAME_SIGNAL:
                    self._end(number)

    def _end(self, number: int) -> None:
        if self._written.fileno() == -1:  # the context has ended in the meantime
            return
        if self._ending is not None:
            self._ending.end_at_once(_MESSAGES[self._resumable], status=128 + number)
        os._exit(128 + number)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._training, self._stopping, self._epoch_ends, self._pending = True, False, False, None
        self._began, self._saved, self._resumable = state.global_step, state.global_step, state.global_step > 0
        if self._resumable:  # a signal may have skipped, or cut short, the evaluation of this step
            unevaluated = _attributes(state).get("unevaluated")
            args.eval_on_start = args.eval_strategy != "no" and unevaluated == state.global_step

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._training = False
        if self._number:
            raise Interrupted(self._number, self._resumable)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._epoch_ends = control.should_training_stop or float(state.epoch or 0).is_integer()
        if self._epoch_ends:
            return
        asked, before = self._ask(args), self._pending
        if asked.device.type == "cpu":
            is_stopping = bool(asked)
        else:  # it is read a step later, when the host need not wait for it
            self._pending = asked.to("cpu", non_blocking=True), torch.Event(device=asked.device)
            self._pending[1].record()
            if before is not None:
                before[1].synchronize()
            is_stopping = before is not None and bool(before[0])
        if is_stopping:
            self._stop(args, state, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._epoch_ends = False
        if bool(self._ask(args)):
            self._stop(args, state, control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if not self._training or not bool(self._ask(args)):
            return
        if state.global_step == self._began:  # nothing to save
            raise Interrupted(self._number or signal.SIGTERM, self._resumable)
        self._stop(args, state, control)
        raise EvaluationInterrupted(self._number or signal.SIGTERM, self._resumable)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._training and not self._epoch_ends and bool(self._ask(args)):
            self._stop(args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._resumable, self._saved = True, state.global_step
        if self._stopping or (not self._epoch_ends and bool(self._ask(args))):
            PartialState().wait_for_everyone()
            raise Interrupted(self._number or signal.SIGTERM, self._resumable)

    def _ask(self, args: TrainingArguments) -> torch.Tensor:
        """Whether any rank has received a signal; a collective operation."""
        flag = torch.full((), int(bool(self._number)), device=args.device if args.world_size > 1 else "cpu")
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
    """Steps whose checkpoints were saved only because of a signal, also before training was resumed."""
    return _attributes(state).get("steps", [])


def _attributes(state: TrainerState) -> dict[str, Any]:
    saved = (state.stateful_callbacks or {}).get(_STATE)
    return saved["attributes"] if isinstance(saved, dict) else {}


def ignore_signals(worker: int) -> None:
    """`worker_init_fn` of a data loader: its workers ignore the signals, since the last step still needs them."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


_active = False


def _restore_defaults() -> None:
    if _active:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)


# Otherwise a forked process would pass its signals to its parent, and SIGTERM would not end it.
os.register_at_fork(after_in_child=_restore_defaults)
