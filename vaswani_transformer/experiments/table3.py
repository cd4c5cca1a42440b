"""Table 3 of the paper (6.2), and the cost of Table 2: the numbers, and how the rows of a sweep compare with them."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedConfig

from ..training.flops import training_flops
from .costs import training_cost


# Perplexity per word-piece and BLEU on newstest2013 (Table 3), by the names of `PAPER_VARIANTS`.
PAPER_SCORES = {
    "base": (4.92, 25.8),
    "A-h1": (5.29, 24.9),
    "A-h4": (5.00, 25.5),
    "A-h16": (4.91, 25.8),
    "A-h32": (5.01, 25.4),
    "B-dk16": (5.16, 25.1),
    "B-dk32": (5.01, 25.4),
    "C-N2": (6.11, 23.7),
    "C-N4": (5.19, 25.3),
    "C-N8": (4.88, 25.5),
    "C-d256": (5.75, 24.5),
    "C-d1024": (4.66, 26.0),
    "C-ff1024": (5.12, 25.4),
    "C-ff4096": (4.75, 26.2),
    "D-drop0.0": (5.77, 24.6),
    "D-drop0.2": (4.95, 25.5),
    "D-ls0.0": (4.67, 25.3),
    "D-ls0.2": (5.47, 25.7),
    "E-learned": (4.92, 25.7),
    "big": (4.33, 26.4),
}

# Steps, and time in hours on 8 P100 (5.2), which sustain 9.5 TFLOPS (footnote 5).
PAPER_TRAININGS = {"base": (100_000, 12.0), "big": (300_000, 3.5 * 24)}
_PAPER_DEVICES, _PAPER_RATE = 8, 9.5e12
_PAPER_TOKENS = 25_000  # of a batch, a side (5.1)
_TOKENS_PER_SENTENCE = 25  # our guess; twice as many change the count by less than one percent

_SETTINGS = (
    "encoder_layers",
    "decoder_layers",
    "d_model",
    "d_ff",
    "num_heads",
    "d_k",
    "d_v",
    "dropout",
    "label_smoothing",
    "position_encoding",
)
_SOURCES = (("commits", "commit"), ("hardware", "hardware"))
_SHORT = 0.95  # of the references' length; below it BLEU's brevity penalty takes more than five percent
_DRAWS = 10_000  # random orders with which the order of the rows is compared

Runs = Mapping[str, Mapping[int, dict[str, Any]]]
Row = dict[str, Any]


def paper_cost(name: str, config: PreTrainedConfig) -> dict[str, Any]:
    """What the paper's "base" or "big" training cost, as `training_cost` has it, the batches counted as full ones."""
    steps, hours = PAPER_TRAININGS[name]
    length = _TOKENS_PER_SENTENCE
    counted = steps * training_flops(config, _PAPER_TOKENS // length, length, length)
    cost = training_cost(hours * 3600, _PAPER_DEVICES, _PAPER_RATE, counted)
    return {**cost, "seconds": hours * 3600, "devices": _PAPER_DEVICES}


def compare_with_paper(runs: Runs) -> dict[str, Any]:
    """The rows of a sweep beside the paper's.

    Args:
        runs: For each row of Table 3, by its name, and each seed what `recipes/train_wmt.py` wrote as
            `all_results.json`; "validation" is what is compared.

    Returns:
        "reference", the row that the others are compared with, the base model where it is there; "rows", for each what
        differs from the reference, parameters, steps, seeds, scores and cost; "agreement", see `agreement`; and, of all
        runs, "commits", "hardware", and what "shared" settings and data they have.
    """
    names = [name for name in PAPER_SCORES if runs.get(name)]
    reference = names[0]
    rows = {name: _summary(name, runs[name]) for name in names}
    first = rows[reference]
    for row in rows.values():
        row["differs"] = {
            setting: value for setting, value in row["settings"].items() if value != first["settings"][setting]
        }
        for name in ("bleu", "perplexity"):
            for score, base in ((row[name], first[name]), (row["paper"][name], first["paper"][name])):
                score["difference"] = score["mean"] - base["mean"]
    results = [result for by_seed in runs.values() for result in by_seed.values()]
    return {
        "reference": reference,
        "rows": rows,
        "agreement": agreement(rows),
        **{name: sorted({result["run"][key] for result in results}) for name, key in _SOURCES},
        "shared": _shared(results[0]),
    }


def _shared(result: dict[str, Any]) -> dict[str, Any]:
    """What every run of a sweep has as this one has it."""
    return {
        "pairs": result["data"]["cleaning"]["kept"],
        **{name: result["settings"][name] for name in ("source_tokens", "target_tokens")},
        "sentences": result["validation"]["sentences"],
        "signature": result["validation"]["bleu"]["signature"],
    }


def _summary(name: str, runs: Mapping[int, dict[str, Any]]) -> Row:
    results = [runs[seed] for seed in sorted(runs)]
    perplexity, bleu = PAPER_SCORES[name]
    return {
        "settings": {setting: results[0]["model"][setting] for setting in _SETTINGS},
        "parameters": results[0]["model"]["parameters"],
        "steps": round(fmean(result["training"]["steps"] for result in results)),
        "seeds": sorted(runs),
        "perplexity": _spread([result["validation"]["perplexity"]["perplexity"] for result in results]),
        "bleu": _spread([result["validation"]["bleu"]["score"] for result in results]),
        "length": fmean(_relative_length(result["validation"]["bleu"]) for result in results),
        "paper": {"perplexity": {"mean": perplexity}, "bleu": {"mean": bleu}},
        "cost": _mean_cost([result["training"] for result in results]),
    }


def _relative_length(bleu: dict[str, Any]) -> float:
    """Of the translations, in that of the references."""
    return bleu["hypothesis_length"] / bleu["reference_length"]


def _spread(values: list[float]) -> dict[str, Any]:
    """Mean and sample standard deviation, which one value has not."""
    return {"mean": fmean(values), "standard_deviation": stdev(values) if len(values) > 1 else None, "values": values}


def _mean_cost(trainings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("by_the_papers_accounting", "counted", "rate")
    cost = {name: fmean(training["cost"][name] for training in trainings) for name in names}
    return {
        **cost,
        "utilisation": cost["counted"] / cost["by_the_papers_accounting"],
        "seconds": fmean(training["seconds"] for training in trainings),
        "devices": trainings[0]["processes"],
    }


def agreement(rows: Mapping[str, Row]) -> dict[str, Any]:
    """How far the order of the rows is the paper's, and how far chance could have made it.

    Args:
        rows: For each "bleu", "perplexity", with "mean", "standard_deviation" and "values", and "paper" with both.

    Returns:
        Both for "bleu" and for "perplexity": "rank_correlation" (Spearman's) and "random_orders_as_good", the share of
        random orders of the rows with at least that correlation, None where there are less than three rows or all are
        equal; "standard_deviation" over seeds, pooled over the rows; the number of pairs of rows that are "separated",
        by more than twice the standard error of the difference of their means; and of these those "as_in_paper",
        "against_paper", and "tied_in_paper". Without a second seed of any row nothing is known of chance, and the
        standard deviation and the numbers of separated pairs are None. And for both, the number of "pairs" and the
        "degrees_of_freedom" of the standard deviation.
    """
    found: dict[str, Any] = {
        "pairs": math.comb(len(rows), 2),
        "degrees_of_freedom": sum(len(row["bleu"]["values"]) - 1 for row in rows.values()),
    }
    for name in ("bleu", "perplexity"):
        ours, papers = [row[name] for row in rows.values()], [row["paper"][name] for row in rows.values()]
        correlation, share = rank_correlation(*([score["mean"] for score in scores] for scores in (ours, papers)))
        found[name] = {"rank_correlation": correlation, "random_orders_as_good": share, **_separation(ours, papers)}
    return found


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """Spearman's rank correlation, equal values sharing their mean rank, and the share of random orders of the second
    that have at least as much of it; or Nones, where there are less than three values or all are equal."""
    ranks = [_ranks(values) - (len(values) + 1) / 2 for values in (first, second)]
    norm = math.prod(np.linalg.norm(side) for side in ranks)
    if len(first) < 3 or norm == 0:
        return None, None
    correlation = float(ranks[0] @ ranks[1] / norm)
    orders = np.random.default_rng(0).permuted(np.tile(ranks[1], (_DRAWS, 1)), axis=1)  # [draws, values]
    return correlation, float(np.mean(orders @ ranks[0] / norm >= correlation - 1e-9))


def _ranks(values: Sequence[float]) -> np.ndarray:
    column = np.asarray(values)[:, None]
    return (column > column.T).sum(axis=1) + ((column == column.T).sum(axis=1) + 1) / 2


def _separation(scores: Sequence[dict[str, Any]], paper: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(("separated", "as_in_paper", "against_paper", "tied_in_paper"))
    freedom = sum(len(row["values"]) - 1 for row in scores)
    if not freedom:
        return {"standard_deviation": None, **found}
    squares = sum((value - row["mean"]) ** 2 for row in scores for value in row["values"])
    deviation = math.sqrt(squares / freedom)
    found = dict.fromkeys(found, 0)
    for i, j in itertools.combinations(range(len(scores)), 2):
        error = deviation * math.sqrt(1 / len(scores[i]["values"]) + 1 / len(scores[j]["values"]))
        difference = scores[i]["mean"] - scores[j]["mean"]
        if abs(difference) > 2 * error:
            direction = difference * (paper[i]["mean"] - paper[j]["mean"])
            kind = "tied_in_paper" if direction == 0 else "as_in_paper" if direction > 0 else "against_paper"
            found["separated"] += 1
            found[kind] += 1
    return {"standard_deviation": deviation, **found}


def score_table(report: dict[str, Any]) -> list[list[str]]:
    """Table 3 as text: the heading, and a line for each row."""
    reference = report["reference"]
    scores = ["PPL", "BLEU", f"BLEU - {reference}"]
    lines = [["row", f"differs from {reference}", "parameters", "steps", "seeds", *scores, "length"]]
    lines[0] += [f"paper: {score}" for score in scores]
    for name, row in report["rows"].items():
        paper = row["paper"]
        lines.append(
            [
                name,
                _as_text(row["differs"]),
                f"{row['parameters']:,}",
                f"{row['steps']:,}",
                str(len(row["seeds"])),
                _with_spread(row["perplexity"]),
                _with_spread(row["bleu"]),
                f"{row['bleu']['difference']:+.2f}",
                f"{row['length']:.2f}",
                f"{paper['perplexity']['mean']:.2f}",
                f"{paper['bleu']['mean']:.1f}",
                f"{paper['bleu']['difference']:+.1f}",
            ]
        )
    return lines


def _as_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{setting} {value}" for setting, value in settings.items())


def _with_spread(score: dict[str, Any]) -> str:
    deviation = score["standard_deviation"]
    return f"{score['mean']:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def cost_table(report: dict[str, Any]) -> list[list[str]]:
    """The accounting of Table 2 as text: the heading, and a line for each row and for each of the paper's models."""
    costs = {name: row["cost"] for name, row in report["rows"].items()}
    costs |= {f"paper: {name}": cost for name, cost in report["paper_costs"].items()}
    lines = [["row", "minutes", "devices", "FLOPs/s of one", "time x devices x rate", "counted", "utilisation"]]
    for name, cost in costs.items():
        numbers = [f"{cost[key]:.1e}".replace("e+", "e") for key in ("rate", "by_the_papers_accounting", "counted")]
        minutes = f"{cost['seconds'] / 60:,.1f}"
        lines.append([name, minutes, str(cost["devices"]), *numbers, f"{cost['utilisation']:.1%}"])
    return lines


def verdict(report: dict[str, Any]) -> str:
    """What the comparison says, and what it does not, in sentences."""
    found = report["agreement"]
    named = [(found[score], label) for score, label in (("bleu", "BLEU"), ("perplexity", "perplexity"))]
    ranks = [
        f"of {label} {score['rank_correlation']:+.2f} (a random order agrees as well in "
        f"{score['random_orders_as_good']:.0%} of cases)"
        for score, label in named
        if score["rank_correlation"] is not None
    ]
    sentences = [f"Rank correlation with the paper's rows (Spearman): {', '.join(ranks)}."] if ranks else []
    if not found["degrees_of_freedom"]:
        sentences.append(
            "No row has a second seed, so that nothing is known of chance: any difference may be due to it."
        )
    else:
        sentences += [
            f"Of {found['pairs']} pairs of rows {score['separated']} differ in {label} by more than twice the standard "
            f"error of their difference (standard deviation over seeds, pooled: {score['standard_deviation']:.2f}, "
            f"{found['degrees_of_freedom']} degrees of freedom): {score['as_in_paper']} of these as in the paper, "
            f"{score['against_paper']} against it, {score['tied_in_paper']} where it has a tie."
            for score, label in named
        ]
        sentences.append("The order of the others may be chance.")
    lengths = [row["length"] for row in report["rows"].values()]
    if min(lengths) < _SHORT:
        sentences.append(
            f"The translations of the row with the shortest have {min(lengths):.0%} of the references' words, those of "
            f"the row with the longest {max(lengths):.0%}: of models that know little yet, the search finds sentences "
            "that end too early, down to empty ones, and BLEU says as much of that as of the words. Perplexity, for "
            "which nothing is searched, does not."
        )
    return " ".join(sentences)


def as_markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    run, scale, shared, reference = (report[name] for name in ("run", "scale", "shared", "reference"))
    facts = [
        f"Command: `{run['command']}`",
        f"Commit: {', '.join(f'`{commit}`' for commit in report['commits'])}, {run['date']}",
        f"Hardware: {'; '.join(report['hardware'])}",
        f"Widths {scale['width']:g} times, layers {scale['depth']:g} times the paper's: {reference} has "
        + _as_text(report["rows"][reference]["settings"]),
        f"Corpus: {shared['pairs']:,} pairs (the paper: about 4.5 million)",
        f"Batches: at most {shared['source_tokens']:,} source and {shared['target_tokens']:,} target tokens "
        "(the paper: about 25,000 of each); steps in the table (the paper: 100,000, big 300,000)",
        f"Scores: of the last step, on the validation set, {shared['sentences']:,} sentences (the paper: newstest2013)",
        f"sacreBLEU signature: `{shared['signature']}` (the paper's BLEU is another)",
        f"Versions: {', '.join(f'{name} {version}' for name, version in run['versions'].items())}",
    ]
    return "\n\n".join(
        [
            "# Table 3, row by row",
            "\n".join(f"- {fact}" for fact in facts),
            "## Scores (Table 3)",
            _markdown_table(score_table(report)),
            "±: standard deviation over seeds; length: that of the translations, in that of the references. The data, "
            "the scores and the sizes are not the paper's, so that differences between rows can be compared, and "
            "values cannot. What follows is said of this corpus, these "
            "sizes and this budget: where the order is another, the paper's may still hold at its own.",
            verdict(report),
            "![Both scores beside the paper's](table3.png)",
            "## Cost of a training (Table 2)",
            _markdown_table(cost_table(report)),
            "A multiply-add is two operations. The rate is that of large matrix products on one device, measured after "
            "each training (the paper: 9.5 TFLOPS); utilisation is the share of time x devices x rate that was "
            "counted. The paper's models are counted as full batches of sentences of "
            f"{_TOKENS_PER_SENTENCE} sub-words.\n",
        ]
    )


def _markdown_table(lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def plot_rows(report: dict[str, Any], path: str | Path) -> None:
    """Draw both scores relative to the reference row, with the spread over seeds, and the paper's, as a PNG file."""
    rows = report["rows"]
    figure = Figure(figsize=(2 + 0.9 * max(len(rows), 4), 7), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name, label in zip(panels, ("bleu", "perplexity"), ("BLEU", "perplexity"), strict=True):
        _draw_differences(axes, [row[name] for row in rows.values()], [row["paper"][name] for row in rows.values()])
        axes.set_ylabel(f"{label} relative to {report['reference']}")
    panels[1].set_xticks(range(len(rows)), list(rows), rotation=30, ha="right")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=120)


def _draw_differences(axes: Axes, scores: Sequence[dict[str, Any]], papers: Sequence[dict[str, Any]]) -> None:
    places, deviations = range(len(scores)), [score["standard_deviation"] or 0.0 for score in scores]
    label = "this sweep, ± standard deviation over seeds" if any(deviations) else "this sweep, one seed"
    heights = [score["difference"] for score in scores]
    axes.bar(places, heights, 0.6, yerr=deviations, capsize=4, color="tab:blue", alpha=0.7, label=label)
    paper = [score["difference"] for score in papers]
    axes.plot(places, paper, "D", color="tab:orange", markeredgecolor="white", markersize=9, label="paper")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(axis="y", alpha=0.3)


def write_report(report: dict[str, Any], directory: Path) -> None:
    """Write `report.md`, `table3.json` and `table3.png` into a directory.

    Args:
        report: What `compare_with_paper` found, and "run", what `describe_run` says; "scale", with "width" and "depth";
            and "paper_costs", what `paper_cost` says of each of `PAPER_TRAININGS`.
        directory: Where to.
    """
    (directory / "table3.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    plot_rows(report, directory / "table3.png")
    (directory / "report.md").write_text(as_markdown(report), encoding="utf-8")
