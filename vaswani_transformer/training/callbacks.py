"""What a trainer shows while it works."""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments


_SHOWN = {
    "loss": "{:.3f}",
    "eval_loss": "{:.3f}",
    "learning_rate": "{:.2e}",
    "target_tokens_per_second": "{:.0f}",
    "padding_share": "{:.1%}",
}
_SHORT = {"learning_rate": "lr", "target_tokens_per_second": "tok/s", "padding_share": "padding"}


class TrainingProgress(ProgressCallback):
    """One progress bar that carries loss, learning rate, target tokens per second and padding share.

    Replaces the trainer's own: `trainer.remove_callback(ProgressCallback)`, then `trainer.add_callback(...)`.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or self.training_bar is None:
            return
        latest = {name: entry[name] for entry in state.log_history for name in _SHOWN if name in entry}
        shown = {_SHORT.get(name, name): _SHOWN[name].format(latest[name]) for name in _SHOWN if name in latest}
        self.training_bar.set_postfix(shown)
