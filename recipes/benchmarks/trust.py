"""What a model knows about its translations: confidence beside chrF.

    python recipes/score.py --model runs/a --source valid.en --reference valid.de --confidence --output_dir runs/scores
    python recipes/benchmarks/trust.py --name captions --scores runs/scores

Each call adds a line to `trust.md` and `trust.json`, or replaces that of its name.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path

from benchmark import BenchmarkArguments, add_entry, run_benchmark

from vaswani_transformer.evaluation.confidence import ConfidenceReport
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.options.arguments import option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance, ScoreRecord


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    name: str = option(MISSING, "Name of the corpus, for the table.")
    scores: str = option(MISSING, "Output directory of score.py, with --confidence.")


@dataclass(frozen=True)
class Entry:
    """One corpus.

    Attributes:
        name: Its name.
        run: Command, commit and machine.
        bleu: sacreBLEU of the scored translations.
        confidence: The report on the scored translations.
    """

    name: str
    run: Provenance
    bleu: float
    confidence: ConfidenceReport


@dataclass(frozen=True)
class TrustRecord(Record):
    """`trust.json`, in the order of time."""

    entries: list[Entry] = field(default_factory=list)


def make_entry(args: Arguments) -> Entry:
    scored = ScoreRecord.load(Path(args.scores, "results.json"))
    if scored.confidence is None:
        raise ValueError("scores: score.py was run without --confidence; give it")
    return Entry(args.name, describe_run(), scored.systems[0].sacrebleu.score, scored.confidence)


def measure(args: Arguments) -> Iterator[TrustRecord]:
    yield TrustRecord(add_entry(TrustRecord.load, Path(args.output, "trust.json"), make_entry(args)))


def as_markdown(record: TrustRecord) -> str:
    rows = [["corpus", "BLEU", "calibration error", "rank correlation", "chrF", "without 10 %", "without 20 %"]]
    for entry in record.entries:
        report = entry.confidence
        figures = [entry.bleu, report.calibration_error, report.rank_correlation, *report.remaining.values()]
        rows.append([entry.name, *(f"{figure:.2f}" for figure in figures)])
    machines = ", ".join(dict.fromkeys(entry.run.hardware for entry in record.entries))
    runs = [f"- {entry.name}: `{entry.run.command}`, commit `{entry.run.commit}`" for entry in record.entries]
    parts = [
        "# What models know about their translations",
        f"{machines}.",
        "Confidence, by cross-validation; the chrF of all translations, and without the least confident ones:",
        markdown_table(rows),
        "\n".join(runs),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    run_benchmark("trust", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
