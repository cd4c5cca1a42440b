"""Pictures of a training run, and of the scores of translations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
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


def plot_bleu_by_source_length(groups: Mapping[str, Sequence[dict[str, Any]]], path: str | Path) -> None:
    """Draw the results of `bleu_by_source_length` on one test set, by system, as a PNG file."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(groups)
    for number, (name, rows) in enumerate(groups.items()):
        shift = (number - (len(groups) - 1) / 2) * width
        bars = axes.bar([place + shift for place in range(len(rows))], [row["sacrebleu"] for row in rows], width)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
        bars.set_label(name)
    axes.set_xticks(range(len(rows)), [_group_label(row) for row in rows])
    axes.set_xlabel("words of the source (number of sentences)")
    axes.set_ylabel("sacreBLEU")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside upper center")
    figure.savefig(path, dpi=120)


def _group_label(row: dict[str, Any]) -> str:
    lengths = f"{row['shortest']}-{row['longest']}" if row["longest"] else f"{row['shortest']} or more"
    return f"{lengths}\n({row['sentences']:,})"


def plot_sweep(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Draw both BLEUs by number of beams and alpha (6.1) as a PNG file.

    Args:
        rows: For each combination "num_beams", "length_penalty", and "sacrebleu" and "paper_bleu" with their "score".
        path: The file to write.
    """
    beams, alphas = (sorted({row[name] for row in rows}) for name in ("num_beams", "length_penalty"))
    figure = Figure(figsize=(2 * (2 + 0.8 * len(alphas)), 2 + 0.5 * len(beams)), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.set_title("BLEU as in the paper")
    right.set_title("sacreBLEU")
    for axes, name in ((left, "paper_bleu"), (right, "sacrebleu")):
        scores = {(row["num_beams"], row["length_penalty"]): row[name]["score"] for row in rows}
        _draw_grid(axes, [[scores[number, alpha] for alpha in alphas] for number in beams])
        axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
        axes.set_yticks(range(len(beams)), [str(number) for number in beams])
        axes.set_xlabel("length penalty (alpha)")
        axes.set_ylabel("beams")
    figure.savefig(path, dpi=120)


def _draw_grid(axes: Axes, grid: Sequence[Sequence[float]]) -> None:
    """`grid` is `[rows, columns]`."""
    axes.imshow(grid, aspect="auto")
    for y, row in enumerate(grid):
        for x, score in enumerate(row):
            axes.text(x, y, f"{score:.2f}", ha="center", va="center", bbox={"color": "white", "alpha": 0.7})
