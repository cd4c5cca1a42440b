"""The output directory of an evaluation: its lock and its files."""

from contextlib import ExitStack
from pathlib import Path

from ..system.files import locked
from .plots import plot_bleu_by_source_length, plot_confidence, plot_sweep
from .records import ScoreRecord


# The translations of the first and the second system.
_TRANSLATIONS = ("translations.txt", "translations.compare.txt")
_PLOTS = ("bleu_by_source_length.png", "sweep.png", "confidence.png")


def lock_output(directory: Path, overwrite: bool, exit_stack: ExitStack) -> None:
    """Lock a directory; one with an earlier evaluation or a model needs `--overwrite`."""
    exit_stack.enter_context(locked(directory, "output_dir"))
    for name in ("results.json", "config.json"):
        if (directory / name).exists() and not overwrite:
            raise FileExistsError(
                f"output_dir: {directory} has a {name}; choose another, or replace files with --overwrite"
            )


def write_scores(directory: Path, record: ScoreRecord, translations: dict[str, list[str]]) -> None:
    """Write the models' translations, plots and `results.json`, replacing an earlier evaluation."""
    for name in ("results.json", *_TRANSLATIONS, *_PLOTS):  # the mark of a complete evaluation first
        (directory / name).unlink(missing_ok=True)
    for system, name in zip(record.systems, _TRANSLATIONS, strict=False):
        if system.num_beams is not None:
            text = "".join(line + "\n" for line in translations[system.name])
            (directory / name).write_text(text, encoding="utf-8")
    lengths, sweep, confidence = (directory / name for name in _PLOTS)
    if groups := {system.name: system.by_source_length for system in record.systems if system.by_source_length}:
        plot_bleu_by_source_length(groups, lengths)
    if record.sweep:
        plot_sweep(record.sweep, sweep)
    if record.confidence:
        plot_confidence(record.confidence, confidence)
    record.save(directory / "results.json")
