"""Plots as PNG files: learning curves, BLEU by source length, confidence, robustness."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..evaluation.confidence import ConfidenceReport
from ..evaluation.robustness import ChangedLines, CopiedLines, Robustness
from ..evaluation.scores import LengthGroup


def plot_learning_curve(log_history: Sequence[Mapping[str, float]], path: Path) -> str | None:
    """Plot losses, BLEU and learning rate by step, each if there is any, from a trainer's `state.log_history`.

    Both losses are without label smoothing, and thus comparable. A curve of few points shows their numbers.

    Returns:
        The file's name; None if there is nothing to plot.
    """
    losses = {"nll_loss": "training, with dropout", "eval_loss": "validation"}
    panels: list[tuple[str, int, dict[str, str]]] = [  # title, height, and labels by logged name
        ("loss without smoothing (nats per sub-word)", 3, losses),
        ("BLEU, part\nof validation", 1, {"eval_bleu": ""}),
        ("learning rate", 1, {"learning_rate": ""}),
    ]
    logged = {name for entry in log_history for name in entry}
    panels = [panel for panel in panels if panel[2].keys() & logged]
    if not panels:
        return None
    figure = Figure(figsize=(8, 2 + 2 * len(panels)), layout="constrained")
    heights = [height for _, height, _ in panels]
    columns = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes, (title, _, labels) in zip(columns.flat, panels, strict=True):
        for name in sorted(labels.keys() & logged, reverse=True):
            steps, values = zip(*((entry["step"], entry[name]) for entry in log_history if name in entry), strict=True)
            axes.plot(steps, values, label=labels[name], marker=".")
            if len(steps) <= 10 and name != "learning_rate":
                shift, box = (0, -14 if name == "nll_loss" else 6), {"color": "white", "alpha": 0.7, "pad": 0}
                axes.margins(y=0.2)  # room for the numbers
                for point in zip(steps, values, strict=True):
                    text = f"{point[1]:.3g}"
                    axes.annotate(text, point, shift, textcoords="offset points", ha="center", fontsize=8, bbox=box)
        if labels is losses:
            axes.legend()
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
    axes.set_xlabel("step")
    figure.savefig(path, dpi=120)
    return path.name


def plot_bleu_by_source_length(groups: Mapping[str, Sequence[LengthGroup]], path: str | Path) -> None:
    """Plot `bleu_by_source_length` of each system on one test set."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(groups)
    for number, (name, rows) in enumerate(groups.items()):
        shift = (number - (len(groups) - 1) / 2) * width
        bars = axes.bar([column + shift for column in range(len(rows))], [row.sacrebleu for row in rows], width)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
        bars.set_label(name)
    axes.set_xticks(range(len(rows)), [f"{row}\n({row.sentences:,})" for row in rows])
    axes.set_xlabel("words of the source (number of sentences)")
    axes.set_ylabel("sacreBLEU")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside upper center")
    figure.savefig(path, dpi=120)


def plot_confidence(report: ConfidenceReport, path: str | Path) -> None:
    """Plot chrF by confidence, with the ideal, and the chrF without the least confident translations."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(f"Rank correlation of log-probability and chrF: {report.rank_correlation:.2f} (1 is perfect)")
    left, right = figure.subplots(1, 2)
    confidence, chrf = ([getattr(each, name) for each in report.bins] for name in ("confidence", "chrf"))
    ends = [min(*confidence, *chrf), max(*confidence, *chrf)]
    left.plot(ends, ends, color="grey", linestyle="--", label="as it should be")
    left.plot(confidence, chrf, marker="o", label="tenths of the translations")
    left.set(xlabel="confidence: expected chrF", ylabel="chrF", title="Calibration")
    left.legend()
    right.bar([f"{float(share):.0%}" for share in report.remaining], list(report.remaining.values()))
    right.bar_label(right.containers[0], fmt="%.1f")
    right.margins(y=0.1)
    right.set(xlabel="least confident translations left out", ylabel="chrF of the others", title="Selection")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def plot_robustness(robustness: Robustness, path: str | Path) -> None:
    """Plot chrF of changed lines beside that of the unchanged, and the share of lines with copied strings."""
    changes, strings = robustness.changes, robustness.strings
    figure = Figure(figsize=(9, 2 + 0.25 * (len(changes) + len(strings))), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[len(changes) + 2, len(strings) + 2])
    bars = above.barh(_with_lines(changes), [each.chrf for each in changes.values()])
    plain = [each.plain_chrf for each in changes.values()]
    above.scatter(plain, range(len(changes)), marker="|", s=150, color="black", label="unchanged lines")
    above.set(xlabel="chrF", title="Changes of the source (number of lines)")
    above.legend(loc="lower right")
    shares = below.barh(_with_lines(strings), [100 * each.copied / each.lines for each in strings.values()])
    below.set(xlabel="% of the lines", title="Strings copied from the source (number of lines)")
    for axes, container in ((above, bars), (below, shares)):
        axes.bar_label(container, fmt="%.1f", padding=6, fontsize=8)
        axes.set_xlim(0, 108)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)


def _with_lines(rows: Mapping[str, ChangedLines | CopiedLines]) -> list[str]:
    return [f"{name} ({each.lines})" for name, each in rows.items()]
