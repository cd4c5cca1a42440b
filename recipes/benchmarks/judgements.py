"""Scores of given translations beside people's: how well a model's log-probabilities rank translations.

    python recipes/benchmarks/judgements.py --name "Wikipedia (MLQE-PE, test)" --model runs/both --target_language de \
        --pairs ../shared/data/mlqe_en-de/test.tsv.gz

The pairs are a table, separated by tabs, with the columns `source`, `translation`, `mean` (people's score) and
`model_score` (log-probability a token by the model that translated). The program tells Spearman's rank correlation of
people's scores with each predictor, and its 95 % interval by the bootstrap. Each call adds a line to `judgements.md`
and `judgements.json`, or replaces that of its name.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path

import numpy as np
from benchmark import BenchmarkArguments, add_entry, run_benchmark
from datasets import Dataset

from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.decoding.decoding_arguments import DecodingArguments
from vaswani_transformer.evaluation.confidence import ranks
from vaswani_transformer.evaluation.perplexity import nats_of_pairs
from vaswani_transformer.evaluation.scores import sentence_chrf
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.languages_vaswani import Directions
from vaswani_transformer.options.arguments import option
from vaswani_transformer.runs.pair_arguments import languages_to_score
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


SAMPLES = 1000  # of the bootstrap


@dataclass
class Arguments(BenchmarkArguments, DecodingArguments):
    """Options of the benchmark."""

    name: str = option(MISSING, "Name of the pairs, for the table.")
    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    pairs: str = option(MISSING, "Table of sources, translations and people's scores.")
    source_language: str | None = option(None, "Code of the source language; by default the model's.")
    target_language: str | None = option(None, "Code of the target language; by default the model's.")


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation with people's scores, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Entry:
    """The correlations on one table, by predictor."""

    name: str
    run: Provenance
    pairs: int
    correlations: dict[str, Correlation]


@dataclass(frozen=True)
class JudgementsRecord(Record):
    """`judgements.json`, in the order of time."""

    entries: list[Entry] = field(default_factory=list)


def correlate(predictor: np.ndarray, judgements: np.ndarray) -> Correlation:
    """Spearman's rank correlation of `[pairs]` predictions and scores, and its bootstrap interval."""

    def spearman(rows: np.ndarray) -> float:
        return float(np.corrcoef(ranks(predictor[rows]), ranks(judgements[rows]))[0, 1])

    whole, random = np.arange(len(judgements)), np.random.default_rng(0)
    samples = [spearman(random.choice(whole, len(whole))) for _ in range(SAMPLES)]
    return Correlation(spearman(whole), *(float(value) for value in np.quantile(samples, (0.025, 0.975))))


def make_entry(args: Arguments) -> Entry:
    head, *lines = (line.split("\t") for line in read_lines(Path(args.pairs)))
    columns = dict(zip(head, zip(*lines, strict=True), strict=True))
    sources, translations = columns["source"], columns["translation"]
    saved = args.open(args.model)
    source, target = languages_to_score([saved.config], args.source_language, args.target_language)
    model, directions = args.load(saved), Directions(saved.config)

    def means(texts: tuple[str, ...], other: tuple[str, ...], languages: tuple[str, str]) -> np.ndarray:
        """Log-probability a token of each of the other texts, given the text."""
        corpus = Dataset.from_list(
            [{"translation": dict(zip("st", pair, strict=True))} for pair in zip(texts, other, strict=True)]
        )
        encoded = encode_corpus(corpus, saved.tokenizer, "s", "t", source_tag=directions.tag(*languages))
        nats = nats_of_pairs(model, saved.tokenizer, encoded, args.tokens_per_batch)
        return -nats / np.asarray(encoded["target_length"][:])

    ahead = means(sources, translations, (source, target))
    predictors = {"log-probability a token": ahead}
    if saved.config.language_tags:
        back = means(translations, sources, (target, source))
        predictors |= {"the same from target to source": back, "mean of both": (ahead + back) / 2}
    predictors |= {
        "shortness of the source": -np.array([len(text) for text in sources]),
        "chrF of the copied source": sentence_chrf(sources, [[text] for text in translations]),
        "log-probability a token, by the model that translated": np.array(columns["model_score"], dtype=float),
    }
    judgements = np.array(columns["mean"], dtype=float)
    correlations = {name: correlate(values, judgements) for name, values in predictors.items()}
    return Entry(args.name, describe_run(), len(sources), correlations)


def measure(args: Arguments) -> Iterator[JudgementsRecord]:
    yield JudgementsRecord(add_entry(JudgementsRecord.load, Path(args.output, "judgements.json"), make_entry(args)))


def as_markdown(record: JudgementsRecord) -> str:
    rows = [["predictor", *(f"{entry.name}, {entry.pairs:,} pairs" for entry in record.entries)]]
    for name in record.entries[0].correlations:
        cells = [entry.correlations[name] for entry in record.entries]
        rows.append([name, *(f"{cell.value:.2f} ({cell.low:.2f} to {cell.high:.2f})" for cell in cells)])
    runs = [f"- {entry.name}: `{entry.run.command}`, commit `{entry.run.commit}`" for entry in record.entries]
    parts = [
        "# Scores of given translations beside people's",
        f"{record.entries[-1].run.hardware}.",
        "Spearman's rank correlation with the mean score of people, and its 95 % interval by the bootstrap:",
        markdown_table(rows),
        "\n".join(runs),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    run_benchmark("judgements", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
