"""What a trainer shows while it works, what it has spent, and how long it may."""

import time
from typing import Any

import torch
from accelerate.utils import broadcast
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState


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


class TrainingTotals(TrainerCallback, ExportableState):
    """What a training has spent. Checkpoints keep it, so that a resumed training counts from where it goes on.

    Attributes:
        seconds: Duration of the training.
        device_seconds: The same, summed over the processes that took part.
        target_tokens: Number of target tokens, over all processes; while training a tensor, lest the device be waited
            for.
        operations_before: Those of `state.total_flos` for which there are no seconds, as a checkpoint without them has.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.device_seconds = 0.0
        self.target_tokens: torch.Tensor | int = 0
        self.operations_before = 0.0
        self._processes = 0
        self._since = 0.0

    def state(self) -> dict[str, Any]:
        self._pass_time()
        names = ("seconds", "device_seconds", "operations_before")
        attributes = {name: getattr(self, name) for name in names} | {"target_tokens": int(self.target_tokens)}
        return {"args": {}, "attributes": attributes}

    @classmethod
    def of_checkpoint(cls, state: TrainerState) -> dict[str, Any]:
        """The attributes by name, as the checkpoint has them that training goes on from; none if it begins."""
        if state.global_step == 0:
            return {}
        return state.stateful_callbacks.get(cls.__name__, {}).get("attributes", {})

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        nothing = {"seconds": 0.0, "device_seconds": 0.0, "target_tokens": 0, "operations_before": state.total_flos}
        for name, value in {**nothing, **self.of_checkpoint(state)}.items():
            setattr(self, name, value)
        self._processes, self._since = args.world_size, time.monotonic()
        state.stateful_callbacks[type(self).__name__] = self.state()  # the trainer asks for no state that it has not

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._pass_time()
        self._processes = 0

    def _pass_time(self) -> None:
        if self._processes:
            now = time.monotonic()
            self.seconds += now - self._since
            self.device_seconds += (now - self._since) * self._processes
            self._since = now


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
        minutes: Since training began, not counting those between an interruption and the resumption.

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
        self._began = time.monotonic() - TrainingTotals.of_checkpoint(state).get("seconds", 0.0)

    def is_over(self, state: TrainerState) -> bool:
        """Whether a checkpoint's training has taken that time."""
        return TrainingTotals.of_checkpoint(state).get("seconds", 0.0) >= 60 * self.minutes

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if have_passed(self.minutes, self._began, args):
            control.should_training_stop = control.should_save = True
