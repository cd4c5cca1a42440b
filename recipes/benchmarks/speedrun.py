"""How soon a model translates image captions well: records of trainings, each faster than the one before.

The data are multi30k, English-German; the target is the sacreBLEU on test_2016_flickr of the model of
multi30k_en_de.yaml, 39.4, as a mean of three seeds. Train with `recipes/train_wmt.py`, once for each seed; the
validation BLEU decides on configurations. This program adds a line:

    python recipes/benchmarks/speedrun.py --runs runs/fast-1 runs/fast-2 runs/fast-3 --track open \
        --change "Muon, cooldown" --references ../shared/data/multi30k_en-de-fr/test_2016_flickr.de.gz

The track "paper" changes only sizes, batches and constants of the schedule; the track "open" may change everything.
The column "minutes" is the duration of training; a record is one of its machine.
"""

import statistics
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path

from frame import BenchmarkArguments, run_benchmark
from matplotlib.figure import Figure

from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.evaluation.multi_bleu import corpus_bleu, paper_tokenizer
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.options.arguments import option
from vaswani_transformer.runs.records import Provenance, RunRecord


# Validation BLEU of the model that the target was taken from.
TARGET = 39.27


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    runs: list[str] = option(MISSING, "Output directories of train_wmt.py, with one configuration and several seeds.")
    change: str = option(MISSING, "What they changed, in words.")
    track: str = option("open", "'paper' or 'open'.")
    references: str | None = option(
        None, "References of the test set, to score lowercased and tokenized text, as others report it."
    )


@dataclass(frozen=True)
class Entry:
    """Trainings with one configuration; of lists, each item is of a seed.

    Attributes:
        change: What they changed.
        track: "paper" or "open".
        run: Command, commit and machine of the first training.
        parameters: Of the model.
        seeds: Of the trainings.
        minutes: Of training.
        processor_minutes: The same, summed over threads and processes; empty in older trainings.
        target_tokens: Sub-words trained on.
        validation: sacreBLEU.
        test: sacreBLEU; empty if it was not scored.
        lowercased: multi-bleu of the lowercased, tokenized test set; empty if it was not scored.
        processes: Of each training.
    """

    change: str
    track: str
    run: Provenance
    parameters: int
    seeds: list[int]
    minutes: list[float]
    processor_minutes: list[float]
    target_tokens: list[int]
    validation: list[float]
    test: list[float]
    lowercased: list[float]
    processes: int = 1

    @property
    def machine(self) -> str:
        """Processor, threads and processes."""
        return self.run.hardware if self.processes == 1 else f"{self.processes} x {self.run.hardware}"

    @property
    def is_good(self) -> bool:
        """Whether the validation BLEU reaches that of the first record."""
        return round(statistics.mean(self.validation), 2) >= TARGET


@dataclass(frozen=True)
class SpeedrunRecord(Record):
    """`speedrun.json`, in the order of time."""

    entries: list[Entry] = field(default_factory=list)


def lowercased_bleu(directory: Path, references: Path) -> float:
    """multi-bleu of a run's translations of the test set, lowercased and tokenized by Moses."""
    translations, reference = (
        [line.lower() for line in read_lines(path)] for path in (directory / "translations.test.txt", references)
    )
    return corpus_bleu(translations, reference, paper_tokenizer("de")).score


def entry_of(args: Arguments) -> Entry:
    directories = [Path(name) for name in args.runs]
    found = [RunRecord.load(directory / "all_results.json") for directory in directories]
    first, trainings = found[0], [each.training for each in found]
    if None in (each.validation for each in found):
        raise ValueError("runs: a training has no validation scores; train with --validation")
    is_tested = all(each.test for each in found)
    references = args.references if is_tested else None
    return Entry(
        change=args.change,
        track=args.track,
        run=first.run,
        parameters=first.model.parameters,
        seeds=[each.settings.seed for each in found],
        minutes=[each.seconds / 60 for each in trainings],
        # The main process measures its own; the others do as much.
        processor_minutes=[
            each.processor_seconds / 60 * each.processes for each in trainings if each.processor_seconds is not None
        ],
        target_tokens=[each.target_tokens for each in trainings],
        validation=[each.validation.bleu.score for each in found],
        test=[each.test.bleu.score for each in found] if is_tested else [],
        lowercased=[lowercased_bleu(each, Path(references)) for each in directories] if references else [],
        processes=trainings[0].processes,
    )


def measure(args: Arguments) -> Iterator[SpeedrunRecord]:
    """The entries so far, and one of the given runs."""
    if args.track not in ("paper", "open"):
        raise ValueError(f"track: must be 'paper' or 'open', is {args.track!r}")
    path = Path(args.output, "speedrun.json")
    earlier = SpeedrunRecord.load(path).entries if path.exists() else []
    yield SpeedrunRecord([*earlier, entry_of(args)])


def as_markdown(record: SpeedrunRecord) -> str:
    times_and_scores = ["minutes", "processor minutes", "validation", "test", "lowercased"]
    lines = [["", "change", "track", *times_and_scores, "seeds", "machine"]]
    fastest: dict[str, float] = {}
    for entry in record.entries:
        minutes, machine = statistics.mean(entry.minutes), entry.machine
        is_record = entry.is_good and minutes < fastest.get(machine, float("inf"))
        if is_record:
            fastest[machine] = minutes
        scores = (_mean(values, ".2f") for values in (entry.validation, entry.test, entry.lowercased))
        times = _mean(entry.minutes, ".1f"), _mean(entry.processor_minutes, ".1f")
        seeds = str(len(entry.seeds))
        mark = "**record**" if is_record else ""
        lines.append([mark, entry.change, entry.track, *times, *scores, seeds, machine])
    facts = (
        "multi30k, English-German: minutes of training until a model translates captions as well as that of the first "
        "line. Means over the seeds, with the range; sacreBLEU of the validation set and of test_2016_flickr, and the "
        "BLEU of its lowercased, tokenized text. What precedes training, tokenization and embeddings from "
        "co-occurrence, took seconds, and is left out. A record has at least the first line's validation BLEU after "
        "less time than any before it on its machine."
    )
    commands = "\n".join(
        f"- {entry.change}: `{entry.run.command}`, commit `{entry.run.commit}`" for entry in record.entries
    )
    picture = "![Minutes and BLEU](speedrun.png)"
    table = markdown_table(lines)
    return f"# Speedrun\n\n{facts}\n\n{table}\n\n{picture}\n\nCommands:\n\n{commands}\n"


def _mean(values: list[float], form: str) -> str:
    if not values:
        return "-"
    mean = format(statistics.mean(values), form)
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}} to {max(values):{form}})"


def plot(record: SpeedrunRecord, path: Path) -> None:
    """Minutes and validation BLEU of all entries."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for entry in record.entries:
        axes.plot(statistics.mean(entry.minutes), statistics.mean(entry.validation), "o", label=entry.change)
    axes.axhline(TARGET, color="grey", linestyle="--")
    axes.set(xlabel="minutes of training", ylabel="validation sacreBLEU")
    figure.legend(loc="outside lower center", fontsize="x-small")
    figure.savefig(path, dpi=150)


def main() -> None:
    run_benchmark("speedrun", Arguments, measure, as_markdown, plot)


if __name__ == "__main__":
    main()
