"""The progress bar of a training; in a pipe, lines."""

import sys
import time
from typing import Any

from tqdm import tqdm
from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments

from .callbacks import training_began


# For each logged value, its name in the bar and its format.
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
    """A progress bar with loss, learning rate, target tokens per second and padding share; in a pipe, lines of them.

    Replaces the trainer's own: `trainer.remove_callback(ProgressCallback)`, then `trainer.add_callback(...)`.

    Args:
        max_minutes: Minutes after which `TimeLimit` ends the training, counted instead of steps.
    """

    def __init__(self, max_minutes: float | None = None) -> None:
        super().__init__()
        self.max_minutes = max_minutes
        self._values: dict[str, str] = {}
        self._began = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = training_began(state)
        if state.is_world_process_zero:
            form, total = (_STEPS, state.max_steps) if self.max_minutes is None else (_MINUTES, self.max_minutes)
            options: dict[str, Any] = {"dynamic_ncols": True, "disable": None, "bar_format": form}
            self.training_bar = tqdm(total=total, initial=self._done(state), **options)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.training_bar is not None:
            self.training_bar.update(self._done(state) - self.training_bar.n)

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
        self._values |= values
        self.training_bar.set_postfix_str("  ".join(f"{name}={value}" for name, value in self._values.items()))
        if self.training_bar.disable and values:
            shown = "  ".join(f"{name}={value}" for name, value in values.items())
            done = f"{state.global_step}/{state.max_steps}"
            if self.max_minutes is not None:
                done = f"{state.global_step} steps, {self._done(state):.1f}/{self.max_minutes:g} min"
            print(f"{done}  {shown}", file=sys.stderr, flush=True)

    def _done(self, state: TrainerState) -> float:
        return state.global_step if self.max_minutes is None else (time.monotonic() - self._began) / 60
