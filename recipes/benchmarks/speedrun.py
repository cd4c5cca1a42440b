"""How soon a model translates image captions well: records of trainings, each faster than the one before.

The data are multi30k, English-German. The target is a validation sacreBLEU of 39.27, with alpha 1.0 for every line, as
the mean of three seeds or more; a record reaches it in less time than any before it on its machine. The validation set
decides on configurations; the test set is scored by this program alone, once for a line. Train once for each seed, with
`recipes/train_wmt.py --config recipes/configs/multi30k_speedrun.yaml`, for instance, and add a line:

    python recipes/benchmarks/speedrun.py --runs runs/fast-1 runs/fast-2 runs/fast-3 --change "Muon, cooldown" \
        --validation val.en.gz val.de.gz --test test_2016_flickr.en.gz test_2016_flickr.de.gz

The track "paper" changes only sizes, batches and constants of the schedule; the track "open" may change everything.
The column "minutes" is the duration of training.
"""

import statistics
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Literal

from frame import BenchmarkArguments, run_benchmark
from matplotlib.figure import Figure

from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.saved_model import open_model
from vaswani_transformer.options.arguments import option
from vaswani_transformer.runs.records import Provenance, RunRecord


# What a record reaches: validation BLEU, the alpha that it is measured with, and the number of seeds.
TARGET, ALPHA, SEEDS = 39.27, 1.0, 3


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    runs: list[str] = option(MISSING, "Output directories of train_wmt.py, with one configuration and several seeds.")
    change: str = option(MISSING, "The name of the line: what they changed, in words.")
    track: Literal["paper", "open"] = option("open", "What the rules let a line change.")
    validation: list[str] = option(MISSING, "Sources and references of the validation set.")
    test: list[str] | None = option(None, "Sources and references of the test set.")

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            files = getattr(self, name)
            if files is not None and len(files) != 2:
                raise ValueError(f"{name}: give two files, sources and references")


@dataclass(frozen=True)
class Entry:
    """Trainings with one configuration; lists have an item for each seed.

    Older lines also tell of ensembles, with several seeds for an item, and of several values of alpha.

    Attributes:
        change: What they changed.
        track: "paper" or "open".
        run: Command, commit and machine of the first training.
        parameters: Number of parameters of a model.
        seeds: Seeds of the trainings.
        minutes: Duration of training.
        processor_minutes: The same, summed over threads and processes; empty in older trainings.
        target_tokens: Sub-words trained on.
        alphas: Exponents of the length penalty; with several, each validation score is the best of them.
        validation: sacreBLEU.
        test: sacreBLEU; empty if it was not scored.
        lowercased: multi-bleu of the lowercased, tokenized test set; empty in newer lines.
        processes: Number of concurrent training processes.
    """

    change: str
    track: str
    run: Provenance
    parameters: int
    seeds: list[int]
    minutes: list[float]
    processor_minutes: list[float]
    target_tokens: list[int]
    alphas: list[float]
    validation: list[float]
    test: list[float]
    lowercased: list[float] = field(default_factory=list)
    processes: int = 1

    @property
    def machine(self) -> str:
        """Processor, threads and processes."""
        return self.run.hardware if self.processes == 1 else f"{self.processes} x {self.run.hardware}"

    @property
    def is_comparable(self) -> bool:
        """Whether the validation BLEU is by the rules of the target."""
        return self.alphas == [ALPHA] and len(self.validation) >= SEEDS

    @property
    def is_good(self) -> bool:
        """Whether the validation BLEU is known to reach the target."""
        return self.is_comparable and round(statistics.mean(self.validation), 2) >= TARGET


@dataclass(frozen=True)
class SpeedrunRecord(Record):
    """`speedrun.json`, in the order of time."""

    entries: list[Entry] = field(default_factory=list)


def score(directory: str, files: list[str]) -> float:
    """sacreBLEU of a model's translations of the first file, with the second as references."""
    saved = open_model(directory)
    sources, references = ([*read_lines(Path(name))] for name in files)
    translations = translate_corpus(saved.load(), saved.tokenizer, sources, length_penalty=ALPHA)
    return sacrebleu_score(translations, references, "de").score


def make_entry(args: Arguments) -> Entry:
    records = [RunRecord.load(Path(directory, "all_results.json")) for directory in args.runs]
    trainings = [record.training for record in records]
    # The main process measures its own time; the others do as much.
    processor_seconds = [(training.processor_seconds or 0) * training.processes for training in trainings]
    return Entry(
        change=args.change,
        track=args.track,
        run=records[0].run,
        parameters=records[0].model.parameters,
        seeds=[record.settings.seed for record in records],
        minutes=[training.seconds / 60 for training in trainings],
        processor_minutes=[seconds / 60 for seconds in processor_seconds if seconds],
        target_tokens=[training.target_tokens for training in trainings],
        alphas=[ALPHA],
        validation=[score(directory, args.validation) for directory in args.runs],
        test=[score(directory, args.test) for directory in args.runs] if args.test else [],
        processes=trainings[0].processes,
    )


def measure(args: Arguments) -> Iterator[SpeedrunRecord]:
    """The entries so far, and a new one."""
    path = Path(args.output, "speedrun.json")
    earlier = SpeedrunRecord.load(path).entries if path.exists() else []
    yield SpeedrunRecord([*earlier, make_entry(args)])


def as_markdown(record: SpeedrunRecord) -> str:
    times_and_scores = ["minutes", "processor minutes", "validation", "test", "lowercased"]
    lines = [["", "change", "track", *times_and_scores, "alpha", "seeds", "machine"]]
    fastest: dict[str, float] = {}
    for entry in record.entries:
        minutes, machine = statistics.mean(entry.minutes), entry.machine
        is_record = entry.is_good and minutes < fastest.get(machine, float("inf"))
        if is_record:
            fastest[machine] = minutes
        scores = (_mean(values, ".2f") for values in (entry.validation, entry.test, entry.lowercased))
        times = _mean(entry.minutes, ".1f"), _mean(entry.processor_minutes, ".1f")
        alphas, seeds = " or ".join(map(str, entry.alphas)), str(len(entry.minutes))
        mark = "**record**" if is_record else "" if entry.is_comparable else "unknown"
        lines.append([mark, entry.change, entry.track, *times, *scores, alphas, seeds, machine])
    facts = f"""\
multi30k, English-German: minutes of training until a model translates captions well. Means over the seeds, with the
range; sacreBLEU of the validation set and of test_2016_flickr, and the BLEU of its lowercased, tokenized text.
Tokenization and first embeddings, which precede training, are not timed.

- The target is a validation BLEU of {TARGET}, with alpha {ALPHA} in every line, as the mean of {SEEDS} seeds or more.
  It is what the model of `multi30k_en_de.yaml` had, of one seed, with alpha 0.6.
- A record reaches the target after less time than any record before it on its machine.
- The validation set decides on configurations, the test set on nothing: `speedrun.py` scores it once.
- "unknown": not measured with alpha {ALPHA}, or with fewer seeds, so that the line can be no record. Of several alphas,
  each model has the one that was best on the validation set, which is scored with it. That flatters these lines:
  [Benchmarks](README.md#speedrun) has what is known of it."""
    commands = "\n".join(
        f"- {entry.change}: `{entry.run.command}`, commit `{entry.run.commit}`" for entry in record.entries
    )
    picture = "![Minutes and validation BLEU of each line, and the target](speedrun.png)"
    table = markdown_table(lines)
    return f"# Speedrun\n\n{facts}\n\n{table}\n\n{picture}\n\nCommands:\n\n{commands}\n"


def _mean(values: list[float], form: str) -> str:
    if not values:
        return "-"
    mean = format(statistics.mean(values), form)
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}} to {max(values):{form}})"


def plot(record: SpeedrunRecord, path: Path) -> None:
    """Minutes and validation BLEU of each line, with the ranges of its seeds, beside the target."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots()
    points = [(statistics.mean(entry.minutes), statistics.mean(entry.validation)) for entry in record.entries]
    middle = statistics.mean([min(points)[0], max(points)[0]])
    for entry, (x, y) in zip(record.entries, points, strict=True):
        filled = "C0" if entry.is_comparable else "white"
        ranges = [[mean - min(each), max(each) - mean] for mean, each in ((x, entry.minutes), (y, entry.validation))]
        bars = [[[below], [above]] for below, above in ranges]
        axes.errorbar(x, y, bars[1], bars[0], "o", color="C0", markerfacecolor=filled, capsize=3)
        side, shift = ("left", 6) if x < middle else ("right", -6)
        axes.annotate(entry.change, (x, y), (shift, 5), textcoords="offset points", ha=side, fontsize="x-small")
    target = f"target: {TARGET}, with alpha {ALPHA}, mean of {SEEDS} seeds"
    axes.axhline(TARGET, color="grey", linestyle="--", label=target)
    axes.legend(
        loc="lower left", fontsize="x-small", title="hollow: another alpha, or fewer seeds", title_fontsize="x-small"
    )
    axes.set(xlabel="minutes of training", ylabel="validation sacreBLEU")
    figure.savefig(path, dpi=150)


def main() -> None:
    run_benchmark("speedrun", Arguments, measure, as_markdown, plot)


if __name__ == "__main__":
    main()
