"""Pictures of a training run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def plot_learning_curve(log_history: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Draw the losses and the learning rate over the steps of a trainer's `state.log_history` as a PNG file."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for name, label in (("loss", "training, smoothed labels"), ("eval_loss", "validation, mean of batches")):
        steps, values = _series(log_history, name)
        if steps:
            losses.plot(steps, values, label=label)
    losses.set_ylabel("loss (nats per sub-word)")
    losses.grid(alpha=0.3)
    losses.legend()
    rates.plot(*_series(log_history, "learning_rate"), color="tab:green")
    rates.set_ylabel("learning rate")
    rates.set_xlabel("step")
    rates.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _series(log_history: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    entries = [entry for entry in log_history if name in entry]
    return [entry["step"] for entry in entries], [entry[name] for entry in entries]
