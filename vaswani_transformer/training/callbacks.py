"""Callbacks for the progress bar, the totals of a training, and its early end."""

import math
import sys
import time
from time import process_time
from typing import Any

import torch
from accelerate.utils import broadcast
from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.utils import logging


logger = logging.get_logger(__name__)

# For each logged value, its name in the bar and its format.
_SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "eval_loss": ("eval_loss", "{:.3f}"),
    "eval_bleu": ("eval_bleu", "{:.2f}"),
    "learning_rate": ("lr", "{:.2e}"),
    "target_tokens_per_second": ("tok/s", "{:.0f}"),
    "padding_share": ("padding", "{:.1%}"),
}


class ProgressBar(tqdm):
    """A line of fields that ends before the terminal does: the last ones are left out, and no number is cut.

    Args:
        limit: Seconds after which the work ends, however much is done; None for no limit.
        passed: Seconds of them that have passed before.
    """

    def __init__(self, *args: Any, limit: float | None = None, passed: float = 0.0, **kwargs: Any) -> None:
        self.limit, self.passed = limit, passed
        self.began, self.initial = time.monotonic(), kwargs.get("initial", 0)
        self.values: list[str] = []
        super().__init__(*args, dynamic_ncols=True, disable=None, **kwargs)

    def __str__(self) -> str:
        return self.line(self.n, self.format_dict["ncols"])

    def line(self, done: int, width: int | None = None) -> str:
        """Progress, time, values and speed, in at most `width` columns; minutes instead of steps if they end first."""
        seconds = time.monotonic() - self.began
        rate = (done - self.initial) / seconds if seconds > 0 else 0.0
        share, left = done / max(self.total, 1), (self.total - done) / rate if rate else math.inf
        counted = f"{done}/{self.total}"
        if self.limit is not None:
            spent = min(self.limit, self.passed + seconds)
            left = min(left, self.limit - spent)
            if spent / self.limit > share:
                share, counted = spent / self.limit, f"{spent / 60:.1f}/{self.limit / 60:g} min, step {done}"
        times = [self.format_interval(each) if each < math.inf else "?" for each in (seconds, left)]
        fields = [counted, f"{share:.0%}", "<".join(times), *self.values, f"{rate:.2f}/s"]
        while width is not None and fields and len("  ".join(fields)) >= width:
            fields.pop()
        return "  ".join(fields)


class TrainingProgress(ProgressCallback):
    """A progress bar with loss, learning rate, target tokens per second and padding share; in a pipe, lines of them.

    Replaces the trainer's own: `trainer.remove_callback(ProgressCallback)`, then `trainer.add_callback(...)`.

    Args:
        max_minutes: Minutes after which training ends, as of `TimeLimit`.
    """

    def __init__(self, max_minutes: float | None = None) -> None:
        super().__init__()
        self.prediction_bar: ProgressBar | None = None
        self.max_minutes = max_minutes

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        limit = None if self.max_minutes is None else 60 * self.max_minutes
        passed = TrainingTotals.of_checkpoint(state).get("seconds", 0.0)
        if state.is_world_process_zero:
            steps = {"total": state.max_steps, "initial": state.global_step}
            self.training_bar = ProgressBar(**steps, limit=limit, passed=passed)
        self.current_step = state.global_step
        self._latest: dict[str, float] = {}

    def on_prediction_step(self, *_: Any, eval_dataloader: Any = None, **__: Any) -> None:
        if self.training_bar is not None and eval_dataloader is not None:
            self.prediction_bar = self.prediction_bar or ProgressBar(total=len(eval_dataloader), leave=False)
            self.prediction_bar.update(1)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, *_: Any, logs: dict[str, Any] | None = None, **__: Any
    ) -> None:
        if self.training_bar is None:  # evaluation without training, or not the main process
            return
        is_line, logs = self.training_bar.disable, logs or {}
        self._latest = logs if is_line else {**self._latest, **logs}
        self.training_bar.values = [
            f"{short}={form.format(self._latest[name])}"
            for name, (short, form) in _SHOWN.items()
            if name in self._latest
        ]
        if not is_line:
            self.training_bar.refresh()
        elif self.training_bar.values:
            print(self.training_bar.line(state.global_step), file=sys.stderr, flush=True)


# Attributes of `TrainingTotals` that checkpoints hold as they are.
_DURATIONS = ("seconds", "device_seconds", "processor_seconds")


class TrainingTotals(TrainerCallback, ExportableState):
    """Time and tokens that a training has spent.

    Checkpoints hold them, so that a resumed training continues to count.

    Attributes:
        seconds: Duration of the training.
        device_seconds: The same, summed over the processes that took part.
        processor_seconds: Processor time of all threads of this process.
        target_tokens: Number of target tokens, over all processes; a tensor during training, so that counting need not
            wait for the device.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.device_seconds = 0.0
        self.processor_seconds = 0.0
        self.target_tokens: torch.Tensor | int = 0
        self._processes = 0
        self._since = self._processor_since = 0.0

    def state(self) -> dict[str, Any]:
        self._pass_time()
        totals = {name: getattr(self, name) for name in _DURATIONS}
        return {"args": {}, "attributes": {**totals, "target_tokens": int(self.target_tokens)}}

    @classmethod
    def of_checkpoint(cls, state: TrainerState) -> dict[str, Any]:
        """The attributes in the checkpoint that training resumes from; empty if training begins."""
        if state.global_step == 0:
            return {}
        return state.stateful_callbacks.get(cls.__name__, {}).get("attributes", {})

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        before = self.of_checkpoint(state)
        for name in _DURATIONS:
            setattr(self, name, before.get(name, 0.0))
        self.target_tokens = before.get("target_tokens", 0)
        self._processes = args.world_size
        self._since, self._processor_since = time.monotonic(), process_time()
        state.stateful_callbacks[type(self).__name__] = self.state()  # the checkpoint may lack it; saving needs the key

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._pass_time()
        self._processes = 0

    def _pass_time(self) -> None:
        if self._processes:
            now, processor_now = time.monotonic(), process_time()
            self.seconds += now - self._since
            self.device_seconds += (now - self._since) * self._processes
            self.processor_seconds += processor_now - self._processor_since
            self._since, self._processor_since = now, processor_now


def is_time_known(args: TrainingArguments, step: int) -> bool:
    """Whether all processes may ask for `minutes_since` at a step: on several GPUs at every tenth, since they wait."""
    return args.world_size == 1 or args.device.type == "cpu" or step % 10 == 0


def minutes_since(began: float, args: TrainingArguments) -> float:
    """Minutes since `began`, a time of the main process's `time.monotonic`, the same on all. Collective.

    Clocks of processes differ, but all must stop, save, or set a rate at the same step.
    """
    minutes = (time.monotonic() - began) / 60
    if args.world_size > 1:
        minutes = broadcast(torch.tensor(minutes, device=args.device)).item()
    return minutes


def have_passed(minutes: float, began: float, args: TrainingArguments, step: int) -> bool:
    """Whether `minutes_since` is at least `minutes`, at a step at which all processes ask. Collective."""
    return is_time_known(args, step) and minutes_since(began, args) >= minutes


class TimeLimit(TrainerCallback):
    """Ends training with a checkpoint after some minutes, for runs of equal time on any machine.

    Args:
        minutes: Minutes of training; those between an interruption and the resumption do not count.

    Raises:
        ValueError: `minutes` is not positive.
    """

    def __init__(self, minutes: float) -> None:
        if not minutes > 0:
            raise ValueError(f"minutes: must be positive, is {minutes}")
        self.minutes = minutes
        self._began = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = time.monotonic() - TrainingTotals.of_checkpoint(state).get("seconds", 0.0)
        control.should_training_stop |= self.is_over(state)

    def is_over(self, state: TrainerState) -> bool:
        """Whether the training in a checkpoint has reached the limit."""
        return TrainingTotals.of_checkpoint(state).get("seconds", 0.0) >= 60 * self.minutes

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if have_passed(self.minutes, self._began, args, state.global_step):
            control.should_training_stop = control.should_save = True
            control.should_evaluate |= args.eval_strategy == "steps"  # as transformers does at the step `max_steps`


class EarlyStopping(TrainerCallback):
    """Saves a checkpoint and ends training if `metric_for_best_model` has not improved for `patience` evaluations.

    It decides by the values in the log, which checkpoints have, so that a resumed training ends at the same step.

    Raises:
        ValueError: `patience` is not positive.
    """

    def __init__(self, patience: int) -> None:
        if not patience >= 1:
            raise ValueError(f"patience: must be at least 1, is {patience}")
        self.patience = patience

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
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

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self.on_train_begin(args, state, control)
        if control.should_training_stop:
            control.should_save = True  # so that the last steps are in the average
