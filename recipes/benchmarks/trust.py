"""What a model knows about its translations: confidence beside chrF, and attention beside statistical word alignment.

First score a development set with `--confidence`, and choose the heads that align, on other pairs or the same:

    python recipes/score.py --model runs/a --source valid.en --reference valid.de --confidence --output_dir runs/scores
    python recipes/align.py --model runs/a --reverse_model runs/b --corpus valid.en valid.de --output valid.align

This program adds a line for a corpus:

    python recipes/benchmarks/trust.py --name captions --scores runs/scores --model runs/a --reverse_model runs/b \
        --corpus valid.en valid.de --statistics train.en train.de

Alignments of `--corpus` are compared with those of IBM model 1 with a prior for the diagonal (Dyer et al., 2013), which
is fitted to the words of `--statistics` and `--corpus` in both directions: the links that both directions have are
sure, those that one has are possible. The error rate is that of Och and Ney (2003), 1 - (|A & S| + |A & P|) / (|A| +
|S|). Writes `trust.md`, `trust.json` and `trust.png`.
"""

import string
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path

import numpy as np
from frame import BenchmarkArguments, run_benchmark
from matplotlib.figure import Figure

from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.decoding.alignment import Aligner, Links
from vaswani_transformer.evaluation.confidence import ConfidenceReport
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.scores_vaswani import AlignmentHeads
from vaswani_transformer.options.arguments import option
from vaswani_transformer.runs.pair_arguments import PairArguments
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance, ScoreRecord


ITERATIONS, TENSION, TO_NOTHING = 5, 4.0, 0.08  # constants of Dyer et al.
PUNCTUATION = string.punctuation + "„“”‚‘’«»…–"


@dataclass
class Arguments(BenchmarkArguments, PairArguments):
    """Options of the benchmark."""

    name: str = option(MISSING, "Name of the corpus, for the table.")
    scores: str = option(MISSING, "Output directory of score.py, with --confidence.")
    statistics: list[str] = option(MISSING, "Pairs to which the statistical alignment is fitted, too.")


@dataclass(frozen=True)
class Entry:
    """One corpus.

    Attributes:
        name: Its name.
        run: Command, commit and machine.
        bleu: sacreBLEU of the scored translations.
        confidence: Of the scored translations.
        pairs: Number of those aligned.
        error_rates: Alignment error rate of each kind of alignment, beside the statistical one.
    """

    name: str
    run: Provenance
    bleu: float
    confidence: ConfidenceReport
    pairs: int
    error_rates: dict[str, float]


@dataclass(frozen=True)
class TrustRecord(Record):
    """`trust.json`, in the order of time."""

    entries: list[Entry] = field(default_factory=list)


def words(line: str) -> list[str]:
    """Words as our links count them, without case and punctuation."""
    return [word.strip(PUNCTUATION).lower() or word for word in line.split()]


def statistical_links(sources: Sequence[str], targets: Sequence[str]) -> list[set[tuple[int, int]]]:
    """The source word, if any, of each target word, by IBM model 1 with a prior for the diagonal, fitted to all pairs.

    The probability that target word j of n stands for source word i of m grows with exp(-4 |i / m - j / n|).
    """
    ids: tuple[dict[str, int], dict[str, int]] = ({"": 0}, {})  # the empty source word stands for nothing
    source_ids, target_ids, tokens, priors, shapes = [], [], [], [], []
    count = 0
    for pair in zip(sources, targets, strict=True):
        own = [
            np.array([known.setdefault(word, len(known)) for word in words(line)], dtype=np.int64)
            for known, line in zip(ids, pair, strict=True)
        ]
        m, n = map(len, own)
        shapes.append((m, n))
        distance = np.abs(np.arange(m)[None] / max(m, 1) - np.arange(n)[:, None] / max(n, 1))  # [n, m]
        prior = np.exp(-TENSION * distance)
        prior *= (1 - TO_NOTHING) / prior.sum(1, keepdims=True) if m else 1
        priors.append(np.concatenate((np.full((n, 1), TO_NOTHING), prior), 1).ravel())
        source_ids.append(np.tile(np.concatenate(([0], own[0])), n))
        target_ids.append(np.repeat(own[1], m + 1))
        tokens.append(np.repeat(np.arange(count, count + n), m + 1))
        count += n
    source, target, token, prior = map(np.concatenate, (source_ids, target_ids, tokens, priors))  # [links]
    keys, of_key = np.unique(source * len(ids[1]) + target, return_inverse=True)
    source_of_key = keys // len(ids[1])
    probability = np.ones(len(keys))
    for _ in range(ITERATIONS):
        weight = prior * probability[of_key]
        posterior = weight / np.bincount(token, weight)[token]
        counts = np.bincount(of_key, posterior)
        probability = counts / np.bincount(source_of_key, counts)[source_of_key]
    best, links, place = prior * probability[of_key], [], 0
    for m, n in shapes:
        chosen = best[place : place + n * (m + 1)].reshape(n, m + 1).argmax(1)
        links.append({(int(i) - 1, j) for j, i in enumerate(chosen) if i})
        place += n * (m + 1)
    return links


def error_rate(found: Sequence[set[tuple[int, int]]], sure: list[set], possible: list[set]) -> float:
    """Alignment error rate of Och and Ney."""
    right = sum(len(a & s) + len(a & p) for a, s, p in zip(found, sure, possible, strict=True))
    return 1 - right / (sum(map(len, found)) + sum(map(len, sure)))


def diagonal(source: str, target: str) -> set[tuple[int, int]]:
    m, n = len(source.split()), len(target.split())
    return {(min(m - 1, round(j * m / n)), j) for j in range(n)} if m else set()


def turned(links: Links) -> set[tuple[int, int]]:
    return {(target, source) for source, target in links}


def entry_of(args: Arguments) -> Entry:
    scored = ScoreRecord.load(Path(args.scores, "results.json"))
    if scored.confidence is None:
        raise ValueError("scores: score.py was run without --confidence; give it")
    models = args.open_models()
    if len(models) != 2:
        raise ValueError("reverse_model: a model of the other direction is needed, for links that both have")
    columns = []
    for corpus in (args.corpus, args.statistics):
        pairs = load_parallel_corpus(corpus, *models[0].languages, columns=args.columns)["translation"]
        columns.append([[pair[language].strip() for pair in pairs] for language in models[0].languages])
    (sources, targets), (more_sources, more_targets) = columns
    kept = slice(len(more_sources), None)
    ahead = statistical_links(more_sources + sources, more_targets + targets)[kept]
    back = statistical_links(more_targets + targets, more_sources + sources)[kept]
    back = [turned(list(links)) for links in back]
    sure, possible = ([op(a, b) for a, b in zip(ahead, back, strict=True)] for op in (set.__and__, set.__or__))
    aligners = [Aligner(args.load(each.saved), each.saved.tokenizer, each.tag) for each in models]
    last = aligners[0].model.config.decoder_layers - 1
    whole = AlignmentHeads([[last, head] for head in range(aligners[0].model.config.decoder_attention_heads)])
    own = AlignmentHeads.of(aligners[0].model)
    of_heads, of_layer = zip(*aligners[0].align(sources, targets, [own, whole]), strict=True)
    reverse = aligners[1].align(targets, sources, [AlignmentHeads.of(aligners[1].model)])
    chosen = [set(links) for links in of_heads]
    found = {
        "chosen heads, links of both directions": [a & turned(b) for a, (b,) in zip(chosen, reverse, strict=True)],
        "chosen heads": chosen,
        "all heads of the last layer": [set(links) for links in of_layer],
        "the diagonal": [diagonal(*pair) for pair in zip(sources, targets, strict=True)],
    }
    return Entry(
        name=args.name,
        run=describe_run(),
        bleu=scored.systems[0].sacrebleu.score,
        confidence=scored.confidence,
        pairs=len(sources),
        error_rates={kind: error_rate(links, sure, possible) for kind, links in found.items()},
    )


def measure(args: Arguments) -> Iterator[TrustRecord]:
    """The entries so far, and one of the given corpus, instead of an earlier one of its name."""
    path = Path(args.output, "trust.json")
    earlier = TrustRecord.load(path).entries if path.exists() else []
    yield TrustRecord([*(each for each in earlier if each.name != args.name), entry_of(args)])


def as_markdown(record: TrustRecord) -> str:
    head = ["corpus", "BLEU", "calibration error", "rank correlation", "chrF", "without 10 %", "without 20 %"]
    confidence, alignment = [head], [["corpus", "pairs", *record.entries[0].error_rates]]
    for entry in record.entries:
        report = entry.confidence
        figures = [entry.bleu, report.calibration_error, report.rank_correlation, *report.remaining.values()]
        confidence.append([entry.name, *(f"{figure:.2f}" for figure in figures)])
        alignment.append([entry.name, f"{entry.pairs:,}", *(f"{rate:.3f}" for rate in entry.error_rates.values())])
    machines = ", ".join(dict.fromkeys(entry.run.hardware for entry in record.entries))
    runs = [f"- {entry.name}: `{entry.run.command}`, commit `{entry.run.commit}`" for entry in record.entries]
    parts = [
        "# What models know about their translations",
        f"{machines}.",
        "Confidence, by cross-validation; the chrF of all translations, and without the least confident ones:",
        markdown_table(confidence),
        "Error rate of our word alignments; less is better. The reference was not made by people. It is the alignment "
        "of IBM model 1 with a prior for the diagonal, which errs, too: the rate says how alike both are.",
        markdown_table(alignment),
        "Choosing heads gains nothing over all heads of the last layer. What gains is to keep only the links that the "
        "models of both directions have, by `align.py` with `--reverse_model` and `--intersect`.",
        "![Calibration and alignment](trust.png)",
        "\n".join(runs),
    ]
    return "\n\n".join(parts) + "\n"


def plot(record: TrustRecord, path: Path) -> None:
    """Confidence and chrF of tenths of the translations; error rates."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, entry in enumerate(record.entries):
        bins = entry.confidence.bins
        left.plot([each.confidence for each in bins], [each.chrf for each in bins], marker="o", label=entry.name)
        places = np.arange(len(entry.error_rates)) + 0.8 * number / len(record.entries)
        right.barh(places, list(entry.error_rates.values()), height=0.8 / len(record.entries), label=entry.name)
    ends = left.get_xlim()
    left.plot(ends, ends, color="grey", linestyle="--")
    left.set(xlabel="confidence: expected chrF", ylabel="chrF", title="Calibration, by tenths of the translations")
    kinds = list(record.entries[0].error_rates)
    right.set_yticks(np.arange(len(kinds)) + 0.2, kinds)
    right.invert_yaxis()
    right.set(title="Alignment error rate, beside statistics")
    left.legend()  # colours are the same on the right
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    run_benchmark("trust", Arguments, measure, as_markdown, plot)


if __name__ == "__main__":
    main()
