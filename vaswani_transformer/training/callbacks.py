"""Callbacks for the totals of a training, and its early end."""

import time
from typing import Any

import torch
from accelerate.utils import broadcast
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.utils import logging

from ..launch.processes import may_synchronize


logger = logging.get_logger(__name__)


class TrainingTotals(TrainerCallback, ExportableState):
    """Time and tokens that a training has spent.

    Checkpoints hold them, so that a resumed training continues to count.

    Attributes:
        seconds: Duration of the training.
        device_seconds: The same, summed over the processes that took part.
        processor_seconds: Processor time of all threads of this process.
        target_tokens: Target tokens trained on, over all processes; a tensor during training, so that counting need
            not wait for the device.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.device_seconds = 0.0
        self.processor_seconds = 0.0
        self.target_tokens: torch.Tensor | int = 0
        self._processes = 0
        self._since = self._processor_since = 0.0

    def state(self) -> dict[str, Any]:
        """The totals until now, for a checkpoint."""
        if self._processes:
            now, processor_now = time.monotonic(), time.process_time()
            self.seconds += now - self._since
            self.device_seconds += (now - self._since) * self._processes
            self.processor_seconds += processor_now - self._processor_since
            self._since, self._processor_since = now, processor_now
        totals = {
            "seconds": self.seconds,
            "device_seconds": self.device_seconds,
            "processor_seconds": self.processor_seconds,
            "target_tokens": int(self.target_tokens),
        }
        return {"args": {}, "attributes": totals}

    @classmethod
    def in_checkpoint(cls, state: TrainerState) -> dict[str, Any]:
        """The attributes in the checkpoint that training resumes from, as `state` makes them; 0 if training begins."""
        saved = state.stateful_callbacks.get(cls.__name__) if state.global_step else None
        return (saved or cls().state())["attributes"]

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.__dict__.update(self.in_checkpoint(state))
        self._processes = args.world_size
        self._since, self._processor_since = time.monotonic(), time.process_time()
        state.stateful_callbacks.setdefault(type(self).__name__, {})  # the checkpoint may lack it; saving needs the key

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.__dict__.update(self.state()["attributes"])
        self._processes = 0  # the time stands still


def minutes_since(began: float, args: TrainingArguments) -> float:
    """Minutes since `began`, a time of the main process's `time.monotonic`, the same on all. Collective.

    Clocks of processes differ, but all must stop, save, or set a rate at the same step.
    """
    minutes = (time.monotonic() - began) / 60
    if args.world_size > 1:
        minutes = broadcast(torch.tensor(minutes, device=args.device)).item()
    return minutes


def training_began(state: TrainerState) -> float:
    """When training would have begun without interruptions, on the monotonic clock."""
    return time.monotonic() - TrainingTotals.in_checkpoint(state)["seconds"]


def have_passed(minutes: float, began: float, args: TrainingArguments, step: int) -> bool:
    """Whether `minutes_since` is at least `minutes`, at a step at which all processes ask. Collective."""
    return may_synchronize(args, step) and minutes_since(began, args) >= minutes


class TimeLimit(TrainerCallback):
    """Ends training with a checkpoint after some minutes, for runs of equal time on any machine.

    Args:
        minutes: Minutes of training; those between an interruption and the resumption do not count.
    """

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self._began = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = training_began(state)
        control.should_training_stop |= self.is_over(state)

    def is_over(self, state: TrainerState) -> bool:
        """Whether the training in a checkpoint has reached the limit."""
        return TrainingTotals.in_checkpoint(state)["seconds"] >= 60 * self.minutes

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if have_passed(self.minutes, self._began, args, state.global_step):
            control.should_training_stop = control.should_save = True
            control.should_evaluate |= args.eval_strategy == "steps"  # as transformers does at the step `max_steps`


class EarlyStopping(TrainerCallback):
    """Saves a checkpoint and ends training if `metric_for_best_model` has not improved for `patience` evaluations.

    It decides by the values in the log, which checkpoints have, so that a resumed training ends at the same step.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop_without_progress(args, state, control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop_without_progress(args, state, control)
        control.should_save |= control.should_training_stop  # so that the last steps are in the average

    def _stop_without_progress(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        values = [entry[name] for entry in state.log_history if name in entry]
        best = max if args.greater_is_better else min
        if values and len(values) - 1 - values.index(best(values)) >= self.patience:
            control.should_training_stop = True
            if state.is_world_process_zero:
                logger.warning(
                    f"early_stopping_patience: training ends at step {state.global_step}; the last {self.patience} "
                    f"evaluations did not improve on an {name} of {best(values):.4g}"
                )
