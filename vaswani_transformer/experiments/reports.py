"""Report of a sweep over Table 3: tables, a verdict in sentences, Markdown, JSON and a plot."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..io.files import atomic_write
from .comparison import PaperScore, SweepRecord, SweepScore
from .numbers import TOKENS_PER_SENTENCE


_SHORT = 0.95  # of the references' length; below it the brevity penalty lowers BLEU by more than five percent

Table = Sequence[Sequence[str]]


def score_table(sweep: SweepRecord) -> Table:
    """Table 3 as text: the headings, then the rows."""
    scores = ["PPL", "BLEU", f"BLEU - {sweep.reference}"]
    lines = [["row", f"differs from {sweep.reference}", "parameters", "steps", "seeds", *scores, "length"]]
    lines[0] += [f"paper: {score}" for score in scores]
    for name, row in sweep.rows.items():
        lines.append(
            [
                name,
                _as_text(row.differs),
                f"{row.parameters:,}",
                f"{row.steps:,}",
                str(len(row.seeds)),
                _with_deviation(row.perplexity),
                _with_deviation(row.bleu),
                f"{row.bleu.difference:+.2f}",
                f"{row.length:.2f}",
                f"{row.paper.perplexity.mean:.2f}",
                f"{row.paper.bleu.mean:.1f}",
                f"{row.paper.bleu.difference:+.1f}",
            ]
        )
    return lines


def _as_text(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{setting} {value}" for setting, value in settings.items())


def _with_deviation(score: SweepScore) -> str:
    deviation = score.standard_deviation
    return f"{score.mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def cost_table(sweep: SweepRecord) -> Table:
    """The accounting of Table 2 as text: headings, the sweep's rows, the paper's models."""
    costs = {name: row.cost for name, row in sweep.rows.items()}
    costs |= {f"paper: {name}": cost for name, cost in sweep.paper_costs.items()}
    lines = [["row", "minutes", "devices", "FLOPs/s of one", "time x devices x rate", "counted", "utilisation"]]
    for name, cost in costs.items():
        operations = (cost.rate, cost.by_the_papers_accounting, cost.counted)
        numbers = [f"{each:.1e}".replace("e+", "e") for each in operations]
        lines.append([name, f"{cost.seconds / 60:,.1f}", str(cost.devices), *numbers, f"{cost.utilisation:.1%}"])
    return lines


def verdict(sweep: SweepRecord) -> str:
    """The result of the comparison, and its limits, in sentences."""
    return " ".join(_sentences(sweep))


def _sentences(sweep: SweepRecord) -> Iterator[str]:
    agreement = sweep.agreement
    scores = {"BLEU": agreement.bleu, "perplexity": agreement.perplexity}
    ranked = [
        f"{score.rank_correlation:+.2f} by {label} ({score.random_orders_as_good:.0%} of random orders agree as well)"
        for label, score in scores.items()
        if score.rank_correlation is not None
    ]
    if ranked:
        yield f"Spearman's rank correlation with the paper's rows: {', '.join(ranked)}."
    if agreement.degrees_of_freedom:
        for label, score in scores.items():
            yield (
                f"Of {agreement.pairs} pairs of rows, {score.separated} differ in {label} by more than twice the "
                f"standard error of the difference (standard deviation over seeds, pooled: "
                f"{score.standard_deviation:.2f}, {agreement.degrees_of_freedom} degrees of freedom): "
                f"{score.as_in_paper} in the paper's order, {score.against_paper} in the opposite order, "
                f"{score.tied_in_paper} that are equal in the paper."
            )
        yield "The order of all other pairs may be due to chance."
    else:
        yield "No row has a second seed, so that any difference may be due to chance."
    lengths = [row.length for row in sweep.rows.values()]
    if min(lengths) < _SHORT:
        yield (
            f"The translations of a row have {min(lengths):.0%} to {max(lengths):.0%} of the references' words: with a "
            "model that has learned little, or a small alpha, the search prefers translations that are too short, even "
            "empty ones. BLEU then measures length as much as words; perplexity, which needs no search, does not."
        )


def as_markdown(sweep: SweepRecord) -> str:
    """The whole report."""
    return "\n\n".join(
        [
            "# Table 3, row by row",
            "\n".join(f"- {fact}" for fact in _facts(sweep)),
            "## Scores (Table 3)",
            markdown_table(score_table(sweep)),
            "±: standard deviation over seeds. Length: of the translations, divided by the references'. Data, scores "
            "and sizes are not the paper's: compare differences between rows, not values. All conclusions below hold "
            "for this corpus, these sizes and this budget; the paper's order may still hold for its own.",
            verdict(sweep),
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
    run, scale, shared, reference = sweep.run, sweep.scale, sweep.shared, sweep.reference
    return [
        f"Command: `{run.command}`",
        f"Commit: {', '.join(f'`{commit}`' for commit in sweep.commits)}, {run.date}",
        f"Hardware: {'; '.join(sweep.hardware)}",
        f"Sizes: widths {scale.width:g} times, layers {scale.depth:g} times the paper's; {reference} has "
        + _as_text(sweep.rows[reference].settings),
        f"Corpus: {shared.pairs:,} pairs (the paper: about 4.5 million)",
        f"Batches: at most {shared.source_tokens:,} source and {shared.target_tokens:,} target tokens (the paper: "
        "about 25,000 of each); steps are in the table (the paper: 100,000, big 300,000)",
        *([] if shared.schedule is None else [f"Learning rate: {shared.schedule}"]),
        *shared.departures,
        *([] if shared.alpha is None else [f"Length penalty of the search: alpha {shared.alpha:g} (the paper: 0.6)"]),
        f"Scores: of the last step, on the validation set of {shared.sentences:,} sentences (the paper: newstest2013)",
        f"sacreBLEU signature: `{shared.signature}` (not the paper's BLEU)",
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
    figure = Figure(figsize=(2 + 0.9 * max(len(rows), 4), 7), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw_differences(upper, [row.bleu for row in rows], [row.paper.bleu for row in rows])
    _draw_differences(lower, [row.perplexity for row in rows], [row.paper.perplexity for row in rows])
    upper.set_ylabel(f"BLEU relative to {sweep.reference}")
    lower.set_ylabel(f"perplexity relative to {sweep.reference}")
    lower.set_xticks(range(len(rows)), list(sweep.rows), rotation=30, ha="right")
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=120)


def _draw_differences(axes: Axes, scores: Sequence[SweepScore], papers: Sequence[PaperScore]) -> None:
    places, deviations = range(len(scores)), [score.standard_deviation or 0.0 for score in scores]
    label = "this sweep, ± standard deviation over seeds" if any(deviations) else "this sweep, one seed"
    heights = [score.difference for score in scores]
    axes.bar(places, heights, 0.6, yerr=deviations, capsize=4, color="tab:blue", alpha=0.7, label=label)
    paper = [score.difference for score in papers]
    axes.plot(places, paper, "D", color="tab:orange", markeredgecolor="white", markersize=9, label="paper")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(axis="y", alpha=0.3)
