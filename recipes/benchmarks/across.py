"""Confidence across corpora: fitted to the translations of one, and used on another.

    python recipes/benchmarks/across.py --model runs/tatoeba --corpora captions.de captions.en everyday.de everyday.en \
        --names captions everyday

Each corpus is a source and its references; the first `--lines` of them count. Writes `across.md` and `across.json`.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, replace

import numpy as np
from benchmark import BenchmarkArguments, run_benchmark

from vaswani_transformer.decoding.decoding_arguments import DecodingArguments
from vaswani_transformer.evaluation.confidence import calibration_bins, calibration_error, measure_confidence
from vaswani_transformer.evaluation.scores import sentence_chrf
from vaswani_transformer.evaluation.test_sets import TestSet, read_test_set
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.pipeline_vaswani import UNLIKE
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.runs.test_set_translations import search_grid, translate_test_set


@dataclass
class Arguments(BenchmarkArguments, DecodingArguments):
    """Options of the benchmark."""

    model: str = option(MISSING, "Directory of a saved model.")
    corpora: list[str] = option(MISSING, "Source and references of each corpus, in files with suffixes of languages.")
    names: list[str] = option(MISSING, "Names of the corpora.")
    lines: int = option(1000, "Lines of each.", COUNT)


@dataclass(frozen=True)
class Use:
    """Confidence that was fitted to one corpus, used on another.

    Attributes:
        languages: Codes of source and target.
        fitted_to, used_on: Names of the corpora; where both are the same, cross-validated.
        calibration_error: Mean distance of confidence and chrF of a tenth of the translations.
        unlike: Percentage of translations beyond the log-probabilities and the lengths of the fit.
    """

    languages: list[str]
    fitted_to: str
    used_on: str
    calibration_error: float
    unlike: float


@dataclass(frozen=True)
class AcrossRecord(Record):
    """`across.json`."""

    run: Provenance
    model: str
    lines: int
    uses: list[Use]


def measure(args: Arguments) -> Iterator[AcrossRecord]:
    saved = args.open(args.model)
    model = args.load(saved)
    (search,) = search_grid(model.generation_config, None, None)
    measured = {}
    for name, source, reference in zip(args.names, args.corpora[::2], args.corpora[1::2], strict=True):
        languages = source.removesuffix(".gz").split(".")[-1], reference.removesuffix(".gz").split(".")[-1]
        whole = read_test_set(source, [reference], languages)
        test_set: TestSet = replace(
            whole, sources=whole.sources[: args.lines], references=whole.references[: args.lines]
        )
        translated = translate_test_set(model, saved.tokenizer, test_set, search, args.tokens_per_batch, True)
        values = [score.mean for score in translated.scores or ()]
        lengths = [score.tokens for score in translated.scores or ()]
        quality = sentence_chrf(translated.lines, test_set.references)
        report = measure_confidence(values, translated.lines, test_set.references, lengths)
        measured[name, languages] = np.array(values), np.array(lengths), quality, report
    uses = []
    for (fitted, languages), (*_, report) in measured.items():
        curve, (low, high) = np.array(report.curve), report.tokens
        for (used, others), (means, tokens, quality, _) in measured.items():
            if others != languages:
                continue
            error = report.calibration_error
            if used != fitted:
                confidence = np.interp(means, curve[:, 0], curve[:, 1])
                error = calibration_error(calibration_bins(confidence, quality))
            is_like = (curve[0, 0] <= means) & (means <= curve[-1, 0]) & (low <= tokens) & (tokens <= high)
            uses.append(Use([*languages], fitted, used, round(error, 2), round(100 * float(1 - is_like.mean()), 1)))
    yield AcrossRecord(describe_run(), args.model, args.lines, uses)


def as_markdown(record: AcrossRecord) -> str:
    rows = [["direction", "fitted to", "used on", "calibration error", "beyond the fit", "the pipeline says"]]
    for use in record.uses:
        verdict = "not for this text" if use.unlike > 100 * UNLIKE else ""
        shares = [f"{use.calibration_error:.2f}", f"{use.unlike:.1f} %"]
        rows.append(["-".join(use.languages), use.fitted_to, use.used_on, *shares, verdict])
    parts = [
        "# Confidence across corpora",
        f"{record.run.hardware}. {record.lines:,} lines of each corpus.",
        markdown_table(rows),
        f"`{record.run.command}`, commit `{record.run.commit}`",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    run_benchmark("across", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
