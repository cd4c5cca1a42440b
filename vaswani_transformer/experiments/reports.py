"""Report of a sweep over Table 3: tables, Markdown, JSON and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..system.files import atomic_write
from .comparison import (
    PAPER_DEVICES,
    PAPER_SCORES,
    PAPER_TRAININGS,
    TOKENS_PER_SENTENCE,
    SweepRecord,
    SweepScore,
    paper_cost,
)


Table = Sequence[Sequence[str]]


def score_table(sweep: SweepRecord) -> Table:
    """Table 3 as text: the headings, then the rows."""
    base = sweep.reference
    perplexity = ["PPL", f"nats - {base}", "p"]
    bleu = ["BLEU", f"BLEU - {base}", "p", "length"]
    paper = ["paper: PPL", "paper: BLEU", f"paper: BLEU - {base}"]
    lines = [["row", f"differs from {base}", "parameters", "steps", "seeds", *perplexity, *bleu, *paper]]
    reference, (_, paper_reference) = sweep.rows[base], PAPER_SCORES[base]
    perplexity_p, bleu_p = sweep.p_values("perplexity"), sweep.p_values("bleu")
    for name, row in sweep.rows.items():
        paper_perplexity, paper_bleu = PAPER_SCORES[name]
        differing = {key: value for key, value in row.settings.items() if value != reference.settings[key]}
        nats = sweep.differences(name, "perplexity")
        lines.append(
            [
                name,
                _settings(differing),
                f"{row.parameters:,}",
                f"{row.steps:,}",
                str(len(row.seeds)),
                _with_error(row.perplexity),
                f"{fmean(nats):+.3f}" if nats else "",
                _p_value(perplexity_p, name),
                _with_error(row.bleu),
                f"{row.bleu.mean - reference.bleu.mean:+.2f}",
                _p_value(bleu_p, name),
                f"{row.length:.2f}",
                f"{paper_perplexity:.2f}",
                f"{paper_bleu:.1f}",
                f"{paper_bleu - paper_reference:+.1f}",
            ]
        )
    return lines


def _p_value(values: Mapping[str, float], row: str) -> str:
    return f"{values[row]:.4f}" if row in values else ""


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _with_error(score: SweepScore) -> str:
    error = score.standard_error
    return f"{score.mean:.2f}" + ("" if error is None else f" ± {error:.2f}")


def cost_table(sweep: SweepRecord) -> Table:
    """The accounting of Table 2 as text: headings, the sweep's rows, the paper's models."""
    rows = [(name, row.seconds, row.devices, row.cost) for name, row in sweep.rows.items()]
    for name, (_, hours) in PAPER_TRAININGS.items():
        rows.append((f"paper: {name}", 3600 * hours, PAPER_DEVICES, paper_cost(name)))
    lines = [["row", "minutes", "devices", "FLOPs/s of one", "time x devices x rate", "counted", "utilisation"]]
    for name, seconds, devices, cost in rows:
        operations = (cost.rate, cost.by_the_papers_accounting, cost.counted)
        numbers = [f"{each:.1e}".replace("e+", "e") for each in operations]
        lines.append([name, f"{seconds / 60:,.1f}", str(devices), *numbers, f"{cost.utilisation:.1%}"])
    return lines


def as_markdown(sweep: SweepRecord) -> str:
    """The whole report."""
    return "\n\n".join(
        [
            "# Table 3, row by row",
            "\n".join(f"- {fact}" for fact in _facts(sweep)),
            "## Scores (Table 3)",
            markdown_table(score_table(sweep)),
            f"±: standard error of the mean over seeds. p: paired t-tests against {sweep.reference} with the same "
            "seed, corrected for the number of rows by Holm's method; where p is above 0.05 or missing, chance may "
            "explain the difference. Nats: logarithm of the perplexity. Length: of the translations, divided by the "
            "references'. Data, scores and sizes are not the paper's: compare differences between rows, not values.",
            "![Both scores beside the paper's](table3.png)",
            "## Cost of a training (Table 2)",
            markdown_table(cost_table(sweep)),
            "A multiply-add is two operations. The rate is measured after each training, from large matrix products on "
            "one device (the paper: 9.5 TFLOPS). Utilisation is the operations counted, divided by time x devices x "
            "rate. For the paper's models the count assumes full batches of sentences of "
            f"{TOKENS_PER_SENTENCE} sub-words.\n",
        ]
    )


def _facts(sweep: SweepRecord) -> list[str]:
    run, scale, reference = sweep.run, sweep.scale, sweep.reference
    return [
        f"Command: `{run.command}`",
        f"Commit: {', '.join(f'`{commit}`' for commit in sweep.commits)}, {run.date}",
        f"Hardware: {'; '.join(sweep.hardware)}",
        f"Sizes: widths {scale.width:g} times, layers {scale.depth:g} times the paper's; {reference} has "
        + _settings(sweep.rows[reference].settings),
        *sweep.facts,
        f"Versions: {', '.join(f'{name} {version}' for name, version in run.versions.items())}",
    ]


def markdown_table(lines: Table) -> str:
    """A table of Markdown: the headings, then the rows."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    rules = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {rows[0]} |", f"|{rules}|", *(f"| {row} |" for row in rows[1:])])


def write_report(sweep: SweepRecord, directory: Path) -> None:
    """Write `report.md`, `table3.json` and `table3.png` into a directory."""
    sweep.save(directory / "table3.json")
    plot_rows(sweep, directory / "table3.png")
    atomic_write(directory / "report.md", as_markdown(sweep))


def plot_rows(sweep: SweepRecord, path: str | Path) -> None:
    """Plot both scores of Table 3 relative to the reference row, beside the paper's."""
    rows = list(sweep.rows.values())
    perplexities, bleus = zip(*(PAPER_SCORES[name] for name in sweep.rows), strict=True)
    figure = Figure(figsize=(2 + 0.9 * max(len(rows), 4), 7), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw_differences(upper, [row.bleu for row in rows], bleus)
    _draw_differences(lower, [row.perplexity for row in rows], perplexities)
    upper.set_ylabel(f"BLEU relative to {sweep.reference}")
    lower.set_ylabel(f"perplexity relative to {sweep.reference}")
    lower.set_xticks(range(len(rows)), list(sweep.rows), rotation=30, ha="right")
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=120)


def _draw_differences(axes: Axes, scores: Sequence[SweepScore], paper: Sequence[float]) -> None:
    """Draw the differences from the first score."""
    places, errors = range(len(scores)), [score.standard_error or 0.0 for score in scores]
    heights = [score.mean - scores[0].mean for score in scores]
    axes.bar(places, heights, 0.6, yerr=errors, capsize=4, color="tab:blue", alpha=0.7, label="this sweep")
    differences = [score - paper[0] for score in paper]
    axes.plot(places, differences, "D", color="tab:orange", markeredgecolor="white", markersize=9, label="paper")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(axis="y", alpha=0.3)
