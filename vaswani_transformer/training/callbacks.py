"""Callbacks that count, limit, show and seed a training."""

import sys
import time
from typing import Any

import torch
from accelerate.utils import broadcast
from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import ExportableState
from transformers.utils import logging

from ..system.processes import derived_seed


logger = logging.get_logger(__name__)


def may_synchronize(args: TrainingArguments, step: int) -> bool:
    """Whether ranks exchange numbers at a step: on several GPUs every tenth, since the host waits for the device."""
    return args.world_size == 1 or args.device.type == "cpu" or step % 10 == 0


class TrainingTotals(TrainerCallback, ExportableState):
    """Time and tokens spent by a training.

    Checkpoints store them, so that a resumed training continues to count.

    Attributes:
        seconds: Duration of the training.
        device_seconds: Duration summed over the processes that took part.
        processor_seconds: Processor time of all threads of this process.
        target_tokens: Target tokens trained on, over all processes; a tensor during training, so that counting does
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
        """The attributes in the checkpoint that training resumes from, as by `state`; 0 if training begins."""
        saved = state.stateful_callbacks.get(cls.__name__) if state.global_step else None
        return (saved or cls().state())["attributes"]

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.__dict__.update(self.in_checkpoint(state))
        self._processes = args.world_size
        self._since, self._processor_since = time.monotonic(), time.process_time()
        state.stateful_callbacks.setdefault(type(self).__name__, {})  # the checkpoint may lack it; saving needs the key

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.__dict__.update(self.state()["attributes"])
        self._processes = 0  # the clock stops


def minutes_since(began: float, args: TrainingArguments) -> float:
    """Minutes since `began`, by the main process's `time.monotonic`; equal on all processes. Collective.

    Clocks of processes differ, but all processes must stop, save, or set a rate at the same step.
    """
    minutes = (time.monotonic() - began) / 60
    if args.world_size > 1:
        minutes = broadcast(torch.tensor(minutes, device=args.device)).item()
    return minutes


def training_began(state: TrainerState) -> float:
    """The time, on the monotonic clock, at which training would have begun without interruptions."""
    return time.monotonic() - TrainingTotals.in_checkpoint(state)["seconds"]


def have_passed(minutes: float, began: float, args: TrainingArguments, step: int) -> bool:
    """Whether `minutes_since` is at least `minutes`; checked only at some steps, by all processes. Collective."""
    return may_synchronize(args, step) and minutes_since(began, args) >= minutes


class TimeLimit(TrainerCallback):
    """Ends training with a checkpoint after some minutes, for runs of equal time on any machine.

    Args:
        minutes: Minutes of training; time between an interruption and the resumption does not count.
    """

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self._began = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = training_began(state)
        control.should_training_stop |= self.is_over(state)

    def is_over(self, state: TrainerState) -> bool:
        """Whether the training of a checkpoint has reached the limit."""
        return TrainingTotals.in_checkpoint(state)["seconds"] >= 60 * self.minutes

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if have_passed(self.minutes, self._began, args, state.global_step):
            control.should_training_stop = control.should_save = True
            control.should_evaluate |= args.eval_strategy == "steps"  # as transformers does at the step `max_steps`


class EarlyStopping(TrainerCallback):
    """Saves a checkpoint and ends training if `metric_for_best_model` has not improved for `patience` evaluations.

    It decides by the logged values, which checkpoints contain, so that a resumed training ends at the same step.

    Attributes:
        has_stopped: Whether it ended the training.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.has_stopped = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop_without_progress(args, state, control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop_without_progress(args, state, control)
        control.should_save |= control.should_training_stop  # so that the average includes the last steps

    def _stop_without_progress(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        values = [entry[name] for entry in state.log_history if name in entry]
        best = max if args.greater_is_better else min
        if values and len(values) - 1 - values.index(best(values)) >= self.patience:
            self.has_stopped = control.should_training_stop = True
            if state.is_world_process_zero:
                logger.warning(
                    f"early_stopping_patience: training ends at step {state.global_step}; the last {self.patience} "
                    f"evaluations did not improve on an {name} of {best(values):.4g}"
                )


# Name in the bar, and format, of each logged value; a narrow terminal cuts off the last.
_SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "eval_loss": ("eval_loss", "{:.3f}"),
    "eval_bleu": ("eval_bleu", "{:.2f}"),
    "learning_rate": ("lr", "{:.2e}"),
    "target_tokens_per_second": ("tok/s", "{:.0f}"),
    "padding_share": ("padding", "{:.1%}"),
}
_STEPS = "{n_fmt}/{total_fmt}  {percentage:.0f}%  {elapsed}<{remaining}{postfix}"
_MINUTES = "{n:.1f}/{total:g} min  {percentage:.0f}%{postfix}"


class TrainingProgress(ProgressCallback):
    """A progress bar with loss, learning rate, target tokens per second and padding share; in a pipe, lines of text.

    It replaces the trainer's own: `trainer.remove_callback(ProgressCallback)`, then `trainer.add_callback(...)`.

    Args:
        max_minutes: Minutes after which `TimeLimit` ends the training. The bar then counts these instead of steps, and
            after a fiftieth of them a line says how many steps and passes over the corpus the training will make.
    """

    def __init__(self, max_minutes: float | None = None) -> None:
        super().__init__()
        self.max_minutes = max_minutes
        self._values: dict[str, str] = {}
        self._began = 0.0
        self._first_step: tuple[int, float] | None = None  # its number, and the minutes at its end
        self._is_length_shown = max_minutes is None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = training_began(state)
        if state.is_world_process_zero:
            form, total = (_STEPS, state.max_steps) if self.max_minutes is None else (_MINUTES, self.max_minutes)
            options: dict[str, Any] = {"dynamic_ncols": True, "disable": None, "bar_format": form}
            self.training_bar = tqdm(total=total, initial=self._done(state), **options)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.training_bar is not None:
            self.training_bar.update(self._done(state) - self.training_bar.n)
            if not self._is_length_shown:
                self._show_length(state, self.max_minutes)

    def _show_length(self, state: TrainerState, minutes: float) -> None:
        passed = self._done(state)
        if self._first_step is None:  # it is not timed: it is the longest batch, and waits for the loader
            self._first_step = state.global_step, passed
        step, since = self._first_step
        if passed - since < minutes / 50 or state.global_step == step:
            return
        steps_a_minute = (state.global_step - step) / (passed - since)
        steps = min(state.max_steps, state.global_step + steps_a_minute * max(0.0, minutes - passed))
        passes = steps * state.epoch / state.global_step
        part = "; for all pairs, give it more minutes, or a smaller model" if passes < 1 else ""
        fit = f"{float(f'{steps:.2g}'):,.0f} steps, {passes:.1f} passes over the corpus"
        tqdm.write(f"at this speed, the training will make {fit}, in {minutes:g} min{part}")
        self._is_length_shown = True

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        if self.training_bar is not None and not self.training_bar.disable:
            super().on_prediction_step(*args, **kwargs)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, *_: Any, logs: dict[str, Any] | None = None, **__: Any
    ) -> None:
        if self.training_bar is None:  # evaluation without training, or not the main process
            return
        logged = logs or {}
        values = {short: form.format(logged[name]) for name, (short, form) in _SHOWN.items() if name in logged}
        known = self._values | values
        self._values = {name: known[name] for name, _ in _SHOWN.values() if name in known}
        self.training_bar.set_postfix_str("  ".join(f"{name}={value}" for name, value in self._values.items()))
        if self.training_bar.disable and values:
            shown = "  ".join(f"{name}={value}" for name, value in values.items())
            done = f"{state.global_step}/{state.max_steps}"
            if self.max_minutes is not None:
                done = f"{state.global_step} steps, {self._done(state):.1f}/{self.max_minutes:g} min"
            print(f"{done}  {shown}", file=sys.stderr, flush=True)

    def _done(self, state: TrainerState) -> float:
        return state.global_step if self.max_minutes is None else (time.monotonic() - self._began) / 60


class SeedByRank(TrainerCallback):
    """Seeds the generators of each rank from (seed, rank, step) when training begins.

    The trainer seeds all ranks alike, so that their initial weights are equal. Their dropout masks, however, must be
    independent. When training is resumed, the trainer then loads the generators' states from the checkpoint. A rank
    without a state there, because another number of processes wrote the checkpoint, keeps its seed from (seed, rank,
    step). A single process that starts at step 0 is left unchanged.

    `VaswaniTrainer` includes it; the stock trainer takes it as a callback.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.world_size > 1 or state.global_step > 0:
            set_seed(derived_seed(args.seed, args.process_index, state.global_step))
