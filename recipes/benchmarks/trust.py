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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path

import numpy as np
from benchmark import BenchmarkArguments, run_benchmark

from vaswani_transformer.convert.ibm_model_1 import Links, fit_model_1
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.decoding.alignment import Aligner
from vaswani_transformer.evaluation.confidence import ConfidenceReport
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.scores_vaswani import AlignmentHeads
from vaswani_transformer.options.arguments import option
from vaswani_transformer.runs.pair_arguments import DirectedModel, PairArguments
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance, ScoreRecord


TENSION, TO_NOTHING = 4.0, 0.08  # constants of Dyer et al.
PUNCTUATION = string.punctuation + "„“”‚‘’«»…–"

Pairs = set[tuple[int, int]]  # places of a source word and a target word, for each link of a sentence pair


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
    """How probable it is that target word j stands for no source word, or for the i-th: `[n, m + 1]`.

    The probability of a source word grows with exp(-4 |i / m - j / n|).
    """
    if not m:
        return np.full((n, 1), TO_NOTHING)
    prior = np.exp(-TENSION * np.abs(np.arange(m) / m - np.arange(n)[:, None] / max(n, 1)))
    prior *= (1 - TO_NOTHING) / prior.sum(1, keepdims=True)
    return np.concatenate((np.full((n, 1), TO_NOTHING), prior), 1)


def statistical_links(sources: Sequence[str], targets: Sequence[str]) -> list[Pairs]:
    """The source word, if any, of each target word, by IBM model 1 with the prior above, fitted to all pairs."""
    numbers: dict[tuple[str, str], int] = {}  # of pairs of a source word, or "" for nothing, and a target word

    def number_pairs(source: str, target: str) -> np.ndarray:
        """Numbers of all pairs of words of two sentences, `[n, m + 1]`, nothing first."""
        heads, rows = ["", *words(source)], words(target)
        grid = [numbers.setdefault((head, word), len(numbers)) for word in rows for head in heads]
        return np.array(grid, dtype=int).reshape(len(rows), len(heads))

    grids = [number_pairs(*sentences) for sentences in zip(sources, targets, strict=True)]
    priors = [diagonal_prior(grid.shape[1] - 1, len(grid)) for grid in grids]
    widths = np.repeat([grid.shape[1] for grid in grids], [len(grid) for grid in grids])  # of each target word's row
    links = Links(
        pairs=np.concatenate([grid.ravel() for grid in grids]),
        places=np.repeat(np.arange(len(widths)), widths),
        priors=np.concatenate([prior.ravel() for prior in priors]),
    )
    _, source_words = np.unique([source for source, _ in numbers], return_inverse=True)  # [pairs of words]
    probabilities = fit_model_1([links], source_words)
    best = [(prior * probabilities[grid]).argmax(1) for prior, grid in zip(priors, grids, strict=True)]
    return [{(int(source) - 1, target) for target, source in enumerate(row) if source} for row in best]


def error_rate(links: Sequence[Pairs], sure: Sequence[Pairs], possible: Sequence[Pairs]) -> float:
    """Alignment error rate of Och and Ney."""
    right = sum(len(a & s) + len(a & p) for a, s, p in zip(links, sure, possible, strict=True))
    return 1 - right / (sum(map(len, links)) + sum(map(len, sure)))


def diagonal(source: str, target: str) -> Pairs:
    """Links of words at the same share of their sentences."""
    m, n = len(source.split()), len(target.split())
    return {(min(m - 1, round(j * m / n)), j) for j in range(n)} if m else set()


def turned(links: Iterable[tuple[int, int]]) -> Pairs:
    return {(target, source) for source, target in links}


def make_entry(args: Arguments) -> Entry:
    scored = ScoreRecord.load(Path(args.scores, "results.json"))
    if scored.confidence is None:
        raise ValueError("scores: score.py was run without --confidence; give it")
    models = args.open_models()
    if len(models) != 2:
        raise ValueError("reverse_model: a model of the other direction is needed, for links that both have")
    sources, targets = read_pairs(args, args.corpus, models[0].languages)
    sure, possible = reference_links(sources, targets, *read_pairs(args, args.statistics, models[0].languages))
    return Entry(
        name=args.name,
        run=describe_run(),
        bleu=scored.systems[0].sacrebleu.score,
        confidence=scored.confidence,
        pairs=len(sources),
        error_rates={
            kind: error_rate(links, sure, possible)
            for kind, links in alignments(args, models, sources, targets).items()
        },
    )


def read_pairs(args: Arguments, corpus: list[str], languages: tuple[str, str]) -> list[list[str]]:
    """The sources and the targets of a corpus."""
    pairs = load_parallel_corpus(corpus, *languages, columns=args.columns)["translation"]
    return [[pair[language].strip() for pair in pairs] for language in languages]


def reference_links(
    sources: list[str], targets: list[str], more_sources: list[str], more_targets: list[str]
) -> tuple[list[Pairs], list[Pairs]]:
    """The links that the statistical alignments of both directions have, and those that one of them has."""
    ahead = statistical_links(sources + more_sources, targets + more_targets)[: len(sources)]
    back = [turned(links) for links in statistical_links(targets + more_targets, sources + more_sources)]
    pairs = [*zip(ahead, back, strict=False)]
    return [a & b for a, b in pairs], [a | b for a, b in pairs]


def alignments(
    args: Arguments, models: list[DirectedModel], sources: list[str], targets: list[str]
) -> dict[str, list[Pairs]]:
    """The links of each kind of alignment that is compared."""
    forward, backward = (
        Aligner(args.load(each.saved), each.saved.tokenizer, each.tag, args.tokens_per_batch) for each in models
    )
    config = forward.model.config
    layer = AlignmentHeads([[config.decoder_layers - 1, head] for head in range(config.decoder_attention_heads)])
    both = forward.align(sources, targets, [AlignmentHeads.for_model(forward.model), layer])
    back = backward.align(targets, sources, [AlignmentHeads.for_model(backward.model)])
    chosen = [set(links) for links, _ in both]
    return {
        "chosen heads, links of both directions": [a & turned(b) for a, (b,) in zip(chosen, back, strict=True)],
        "chosen heads": chosen,
        "all heads of the last layer": [set(links) for _, links in both],
        "the diagonal": [diagonal(*pair) for pair in zip(sources, targets, strict=True)],
    }


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
