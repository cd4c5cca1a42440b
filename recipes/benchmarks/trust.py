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
|S|). Writes `trust.md` and `trust.json`.
"""

import string
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path

import numpy as np
from frame import BenchmarkArguments, run_benchmark

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
        confidence: The report on the scored translations.
        pairs: Number of aligned pairs.
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


def diagonal_prior(m: int, n: int) -> np.ndarray:
    """`[n, m + 1]`: how probable it is that target word j stands for no source word, or for the i-th.

    The probability of a source word grows with exp(-4 |i / m - j / n|).
    """
    if not m:
        return np.full((n, 1), TO_NOTHING)
    prior = np.exp(-TENSION * np.abs(np.arange(m) / m - np.arange(n)[:, None] / max(n, 1)))
    prior *= (1 - TO_NOTHING) / prior.sum(1, keepdims=True)
    return np.concatenate((np.full((n, 1), TO_NOTHING), prior), 1)


def statistical_links(sources: Sequence[str], targets: Sequence[str]) -> list[set[tuple[int, int]]]:
    """The source word, if any, of each target word, by IBM model 1 with the prior above, fitted to all pairs."""
    source_ids: dict[str, int] = {"": 0}  # the empty source word stands for nothing
    target_ids: dict[str, int] = {}
    pairs = [
        (
            np.array([0, *(source_ids.setdefault(word, len(source_ids)) for word in words(source))]),
            np.array([target_ids.setdefault(word, len(target_ids)) for word in words(target)], dtype=int),
        )
        for source, target in zip(sources, targets, strict=True)
    ]
    codes = [source * len(target_ids) + target[:, None] for source, target in pairs]  # [n, m + 1] each
    priors = [diagonal_prior(len(source) - 1, len(target)) for source, target in pairs]
    entries = np.unique(np.concatenate([code.ravel() for code in codes]))
    source_of_entry = entries // len(target_ids)
    places = [np.searchsorted(entries, code) for code in codes]
    table = np.ones(len(entries))  # probability of the target word, if the source word is that of the entry
    for _ in range(ITERATIONS):
        counts = np.zeros(len(entries))
        for place, prior in zip(places, priors, strict=True):
            weight = prior * table[place]
            np.add.at(counts, place, weight / weight.sum(1, keepdims=True))
        table = counts / np.bincount(source_of_entry, counts)[source_of_entry]
    best = [(prior * table[place]).argmax(1) for place, prior in zip(places, priors, strict=True)]
    return [{(int(source) - 1, target) for target, source in enumerate(each) if source} for each in best]


def error_rate(links: Sequence[set[tuple[int, int]]], sure: list[set], possible: list[set]) -> float:
    """Alignment error rate of Och and Ney."""
    right = sum(len(a & s) + len(a & p) for a, s, p in zip(links, sure, possible, strict=True))
    return 1 - right / (sum(map(len, links)) + sum(map(len, sure)))


def diagonal(source: str, target: str) -> set[tuple[int, int]]:
    m, n = len(source.split()), len(target.split())
    return {(min(m - 1, round(j * m / n)), j) for j in range(n)} if m else set()


def turned(links: Links) -> set[tuple[int, int]]:
    return {(target, source) for source, target in links}


def make_entry(args: Arguments) -> Entry:
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
    ahead = statistical_links(sources + more_sources, targets + more_targets)[: len(sources)]
    back = statistical_links(targets + more_targets, sources + more_sources)[: len(sources)]
    back = [turned(list(links)) for links in back]
    sure, possible = ([op(a, b) for a, b in zip(ahead, back, strict=True)] for op in (set.__and__, set.__or__))
    aligners = [Aligner(args.load(each.saved), each.saved.tokenizer, each.tag) for each in models]
    last = aligners[0].model.config.decoder_layers - 1
    whole = AlignmentHeads([[last, head] for head in range(aligners[0].model.config.decoder_attention_heads)])
    heads = [AlignmentHeads.for_model(aligner.model) for aligner in aligners]
    by_heads, by_layer = zip(*aligners[0].align(sources, targets, [heads[0], whole]), strict=True)
    reverse = aligners[1].align(targets, sources, [heads[1]])
    chosen = [set(links) for links in by_heads]
    alignments = {
        "chosen heads, links of both directions": [a & turned(b) for a, (b,) in zip(chosen, reverse, strict=True)],
        "chosen heads": chosen,
        "all heads of the last layer": [set(links) for links in by_layer],
        "the diagonal": [diagonal(*pair) for pair in zip(sources, targets, strict=True)],
    }
    return Entry(
        name=args.name,
        run=describe_run(),
        bleu=scored.systems[0].sacrebleu.score,
        confidence=scored.confidence,
        pairs=len(sources),
        error_rates={kind: error_rate(links, sure, possible) for kind, links in alignments.items()},
    )


def measure(args: Arguments) -> Iterator[TrustRecord]:
    """The entries so far, and a new one, which replaces an earlier one of its name."""
    path = Path(args.output, "trust.json")
    earlier = TrustRecord.load(path).entries if path.exists() else []
    yield TrustRecord([*(each for each in earlier if each.name != args.name), make_entry(args)])


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
        "\n".join(runs),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    run_benchmark("trust", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
