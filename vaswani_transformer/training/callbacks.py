"""What a trainer shows while it works."""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments


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
