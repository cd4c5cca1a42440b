"""How soon a model translates image captions well: records of trainings, each faster than the one before.

The data are multi30k, English-German. The target is a validation sacreBLEU of 39.27, with alpha 1.0, as the mean of
three seeds or more; a record reaches it in fewer minutes of training than any before it on its machine. The validation
set decides on configurations; the test set is scored by this program alone, once for a line. Train once for each seed,
with `recipes/train_wmt.py --config recipes/configs/multi30k_speedrun.yaml`, for instance, and add a line:

    python recipes/benchmarks/speedrun.py --runs runs/fast-1 runs/fast-2 runs/fast-3 --change "Muon, cooldown" \
        --validation val.en.gz val.de.gz --test test_2016_flickr.en.gz test_2016_flickr.de.gz

The track "paper" changes only sizes, batches and constants of the schedule; the track "open" may change everything.
Records of an earlier format are in `model_cards/benchmarks/speedrun_history.md`.
"""

import math
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Literal

from benchmark import DeviceArguments, run_benchmark
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
class Arguments(DeviceArguments):
    """Options of the benchmark."""

    runs: list[str] = option(MISSING, "Output directories of train_wmt.py, with one configuration and several seeds.")
    change: str = option(MISSING, "The name of the line: what they changed, in words.")
    track: Literal["paper", "open"] = option("open", "What the rules let a line change.")
    validation: list[str] = option(MISSING, "Sources and references of the validation set.")
    test: list[str] = option(MISSING, "Sources and references of the test set.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.runs) < SEEDS:
            raise ValueError(f"runs: a line needs trainings with {SEEDS} seeds, got {len(self.runs)}")
        for name in ("validation", "test"):
            if len(getattr(self, name)) != 2:
                raise ValueError(f"{name}: give two files, sources and references")


@dataclass(frozen=True)
class Entry:
    """Trainings with one configuration; lists have an item for each seed.

    Attributes:
        change: What they changed.
        track: "paper" or "open".
        run: Command, commit and machine of the first training.
        processes: Number of processes of a training.
        seeds: Seeds of the trainings.
        minutes: Duration of training.
        validation: sacreBLEU of the validation set.
        test: sacreBLEU of the test set.
    """

    change: str
    track: str
    run: Provenance
    processes: int
    seeds: list[int]
    minutes: list[float]
    validation: list[float]
    test: list[float]

    @property
    def machine(self) -> str:
        """Processes, processor and threads."""
        count = f"{self.processes} x "
        return count + self.run.hardware.removeprefix(count)  # where it is GPUs, one a process

    @property
    def is_good(self) -> bool:
        """Whether the mean validation BLEU reaches the target."""
        return round(mean(self.validation), 2) >= TARGET


@dataclass(frozen=True)
class SpeedrunRecord(Record):
    """`speedrun.json`, in the order of time."""

    entries: list[Entry] = field(default_factory=list)


def scores(directory: str, device: str, *test_sets: list[str]) -> list[float]:
    """sacreBLEU of a model on each test set, a file of sources and one of references."""
    saved = open_model(directory)
    model, bleu = saved.load().to(device), []
    for files in test_sets:
        sources, references = ([*read_lines(Path(name))] for name in files)
        translations = translate_corpus(model, saved.tokenizer, sources, length_penalty=ALPHA)
        bleu.append(sacrebleu_score(translations, references, "de").score)
    return bleu


def measure(args: Arguments) -> Iterator[SpeedrunRecord]:
    """The entries so far, and a new one."""
    path = Path(args.output, "speedrun.json")
    earlier = SpeedrunRecord.load(path).entries if path.exists() else []
    records = [RunRecord.load(Path(directory, "all_results.json")) for directory in args.runs]
    seeds = [record.settings.seed for record in records]
    if len({*seeds}) < len(seeds):
        raise ValueError(f"runs: a line needs trainings with different seeds, these have {', '.join(map(str, seeds))}")
    scored = [scores(directory, args.device, args.validation, args.test) for directory in args.runs]
    entry = Entry(
        change=args.change,
        track=args.track,
        run=records[0].run,
        processes=records[0].training.processes,
        seeds=seeds,
        minutes=[record.training.seconds / 60 for record in records],
        validation=[validation for validation, _ in scored],
        test=[test for _, test in scored],
    )
    yield SpeedrunRecord([*earlier, entry])


def as_markdown(record: SpeedrunRecord) -> str:
    lines = [["", "change", "track", "minutes", "validation", "test", "machine"]]
    fastest: dict[str, float] = {}
    for entry in record.entries:
        minutes = mean(entry.minutes)
        is_record = entry.is_good and minutes < fastest.get(entry.machine, math.inf)
        if is_record:
            fastest[entry.machine] = minutes
        numbers = with_range(entry.minutes, ".1f"), with_range(entry.validation, ".2f"), with_range(entry.test, ".2f")
        lines.append(["**record**" if is_record else "", entry.change, entry.track, *numbers, entry.machine])
    facts = (
        "multi30k, English-German: minutes of training until a model translates captions well. Means over the seeds, "
        "with the range; sacreBLEU of the validation set and of test_2016_flickr. Tokenization and first embeddings, "
        f"which precede training, are not timed. The target is a validation BLEU of {TARGET}, with alpha {ALPHA}; a "
        "record reaches it sooner than any before it on its machine."
    )
    picture = "![Minutes and validation BLEU of each line, and the target](speedrun.png)"
    commands = [f"- {entry.change}: `{entry.run.command}`, commit `{entry.run.commit}`" for entry in record.entries]
    return "\n\n".join(["# Speedrun", facts, markdown_table(lines), picture, "\n".join(commands)]) + "\n"


def with_range(values: list[float], form: str) -> str:
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def plot(record: SpeedrunRecord, path: Path) -> None:
    """Minutes and validation BLEU of each training, beside the target."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots()
    for entry in record.entries:
        axes.plot(entry.minutes, entry.validation, "o", label=entry.change)
    axes.axhline(TARGET, color="grey", linestyle="--", label="target")
    axes.legend(fontsize="x-small")
    axes.set(xlabel="minutes of training", ylabel="validation sacreBLEU")
    figure.savefig(path, dpi=150)


def main() -> None:
    run_benchmark("speedrun", Arguments, measure, as_markdown, plot)


if __name__ == "__main__":
    main()
