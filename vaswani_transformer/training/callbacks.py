"""What a trainer shows while it works, and how long it may."""

import time
from typing import Any

import torch
from accelerate.utils import broadcast
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


# What is logged, how the bar calls it, and how it is written.
_SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "eval_loss": ("eval_loss", "{:.3f}"),
    "learning_rate": ("lr", "{:.2e}"),
    "target_tokens_per_second": ("tok/s", "{:.0f}"),
    "padding_share": ("padding", "{:.1%}"),
}


class TrainingProgress(ProgressCallback):
    """One progress bar that carries loss, learning rate, target tokens per second and padding share.

    Replaces the trainer's own: `trainer.remove_callback(ProgressCallback)`, then `trainer.add_callback(...)`.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._latest: dict[str, float] = {}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self.training_bar is None:  # evaluating alone, or not the main process
            return
        self._latest.update(logs or {})
        self.training_bar.set_postfix(
            {short: form.format(self._latest[name]) for name, (short, form) in _SHOWN.items() if name in self._latest}
        )


def have_passed(minutes: float, since: float, args: TrainingArguments) -> bool:
    """Whether so many minutes have passed since a time of `time.monotonic`, by the main process's clock: the clocks of
    processes differ, but all must stop, or save, at the same step."""
    due = time.monotonic() - since >= 60 * minutes
    if args.world_size > 1:
        due = bool(broadcast(torch.tensor(int(due), device=args.device)).item())
    return due


class TimeLimit(TrainerCallback):
    """Ends training, with a checkpoint, once it has taken so many minutes: for runs of equal time on any machine.

    Args:
        minutes: Since training began, or was resumed.

    Raises:
        ValueError: `minutes` is not positive.
    """

    def __init__(self, minutes: float) -> None:
        if not minutes > 0:
            raise ValueError(f"minutes: must be positive, is {minutes}")
        self.minutes = minutes
        self._began = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if have_passed(self.minutes, self._began, args):
            control.should_training_stop = control.should_save = True
