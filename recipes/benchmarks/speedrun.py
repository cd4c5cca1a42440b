"""A challenge: how soon a model translates image captions well. Its rules:

1. Data: the training set of multi30k, in any of its languages. No other text, and no pretrained weights.
2. Target: the mean validation sacreBLEU over the seeds (English to German, alpha 1.0) exceeds 39.27 with 95 %
   confidence (one-sided t-test).
3. Seeds: three or more. All trained seeds count.
4. Budget: at most 24 processor minutes per training, summed over its processes, from the first batch to the last.
5. Choose configurations by the validation set. Only this program scores test_2016_flickr, once for a line.
6. A record reaches the target in fewer processor minutes than any earlier one on its machine.

To enter, commit the configuration, and the code if it has changed. One command trains each seed, scores the models, and
adds the line, with the log and the results of each training; after an interruption it continues:

    python recipes/benchmarks/speedrun.py --training multi30k_speedrun --change "Muon, cooldown" \
        --processes 1 --parallel 2 \
        --validation data/multi30k/val.en.gz data/multi30k/val.de.gz \
        --test data/multi30k/test_2016_flickr.en.gz data/multi30k/test_2016_flickr.de.gz
"""

import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from statistics import mean, stdev
from string import ascii_uppercase

from benchmark import BenchmarkArguments, run_benchmark
from matplotlib.figure import Figure
from scipy.stats import t as student

from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.experiments.sweep import Job, train_all
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.records import Provenance, RunRecord
from vaswani_transformer.runs.run_directory import RECORD_NAME
from vaswani_transformer.system.typed_json import Record


TARGET, ALPHA, SEEDS, BUDGET = 39.27, 1.0, 3, 24  # validation BLEU; least seeds; processor minutes
RECIPES = Path(__file__).resolve().parents[1]


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    # Not named `config`, which is the file of this program's own options.
    training: str = option(MISSING, "Configuration of the training: a YAML file, or a name in recipes/configs.")
    change: str = option(MISSING, "The name of the line: what it changes, in words.")
    seeds: list[int] = option([1, 2, 3], "Seeds to train with.")
    processes: int = option(2, "Processes of a training, each of one thread.", COUNT)
    parallel: int = option(1, "Trainings at a time.", COUNT)
    validation: list[str] = option(MISSING, "Sources and references of the validation set.")
    test: list[str] = option(MISSING, "Sources and references of the test set.")
    runs: str = option("runs/speedrun", "Directory for the trainings.")

    def __post_init__(self) -> None:
        if len({*self.seeds}) < max(SEEDS, len(self.seeds)):
            raise ValueError(f"seeds: a line needs {SEEDS} different ones, got {' '.join(map(str, self.seeds))}")
        for name in ("validation", "test"):
            if len(getattr(self, name)) != 2:
                raise ValueError(f"{name}: give two files, sources and references")

    @property
    def name(self) -> str:
        """The change as a name for a directory."""
        return re.sub(r"[^a-z0-9]+", "-", self.change.lower()).strip("-")


@dataclass(frozen=True)
class Entry:
    """Trainings with one configuration; lists have an item for each seed.

    Attributes:
        run: Provenance of the first training.
        processes: Number of processes of a training.
        logs: Directory of their logs and results, next to the table.
        processor_minutes: Processor time of all processes.
        validation, test: sacreBLEU.
    """

    change: str
    run: Provenance
    processes: int
    seeds: list[int]
    logs: str
    minutes: list[float]
    processor_minutes: list[float]
    validation: list[float]
    test: list[float]

    @property
    def machine(self) -> str:
        """Processes, processor and threads."""
        return f"{self.processes} x {self.run.hardware}"

    @property
    def is_good(self) -> bool:
        """Whether the trainings stay within the budget, and their validation BLEU reaches the target."""
        return max(self.processor_minutes) <= BUDGET and self.lower_bound >= TARGET

    @property
    def lower_bound(self) -> float:
        """Lower bound of the mean validation BLEU with 95 % confidence, by Student's t."""
        error = stdev(self.validation) / math.sqrt(len(self.validation))
        return mean(self.validation) - student.ppf(0.95, len(self.validation) - 1) * error


@dataclass(frozen=True)
class SpeedrunRecord(Record):
    """`speedrun.json`, in chronological order."""

    entries: list[Entry]


def scores(directory: str, *test_sets: list[str]) -> list[float]:
    """sacreBLEU of a model on each test set, a file of sources and one of references."""
    saved = open_model(directory)
    model, bleu = saved.load(), []
    for files in test_sets:
        sources, references = ([*read_lines(Path(name))] for name in files)
        translations = translate_corpus(model, saved.tokenizer, sources, length_penalty=ALPHA)
        bleu.append(sacrebleu_score(translations, references, "de").score)
    return bleu


def train(args: Arguments) -> list[Path]:
    """Train each unfinished seed; return the directories of the trainings."""

    def command(job: Job) -> list[str]:
        options = ["--config", args.training, "--seed", str(job.seed), "--output_dir", str(job.directory)]
        options += ["--use_cpu", "--processes", str(args.processes)]
        resume = ["--resume"] if (job.directory / RECORD_NAME).exists() else []
        return [str(RECIPES / "train_wmt.py"), *options, *resume]

    jobs = [Job(args.name, seed, Path(args.runs)) for seed in args.seeds]
    if failed := train_all(jobs, [{"OMP_NUM_THREADS": "1"}] * args.parallel, command):
        raise ValueError(f"training: failed for {', '.join(job.name for job in failed)}; see {failed[0].log}")
    return [job.directory for job in jobs]


def measure(args: Arguments) -> Iterator[SpeedrunRecord]:
    path = Path(args.output, "speedrun.json")
    directories = train(args)
    records = [RunRecord.load(directory / "all_results.json") for directory in directories]
    logs = Path("speedrun_logs", args.name)
    for seed, directory in zip(args.seeds, directories, strict=True):
        (path.parent / logs).mkdir(parents=True, exist_ok=True)
        shutil.copy(directory / "train.log", path.parent / logs / f"seed-{seed}.log")
        shutil.copy(directory / "all_results.json", path.parent / logs / f"seed-{seed}.json")
    scored = [scores(str(directory), args.validation, args.test) for directory in directories]
    processes = records[0].training.processes
    entry = Entry(
        change=args.change,
        run=records[0].run,
        processes=processes,
        seeds=args.seeds,
        logs=str(logs),
        minutes=[record.training.seconds / 60 for record in records],
        # The processes do the same work on other data; the record has the time of the main one.
        processor_minutes=[record.training.processor_seconds * processes / 60 for record in records],
        validation=[validation for validation, _ in scored],
        test=[test for _, test in scored],
    )
    earlier = SpeedrunRecord.load(path).entries if path.exists() else []
    yield SpeedrunRecord([*(each for each in earlier if each.change != entry.change), entry])


def lettered(entries: list[Entry]) -> Iterator[tuple[str, bool, Entry]]:
    """Each entry with its letter, and whether it is good and faster than any record before it on its machine."""
    fastest: dict[str, float] = {}
    for row, entry in enumerate(entries):
        minutes = mean(entry.processor_minutes)
        is_record = entry.is_good and minutes < fastest.get(entry.machine, math.inf)
        if is_record:
            fastest[entry.machine] = minutes
        yield f"{ascii_uppercase[row % 26]}{row // 26 or ''}", is_record, entry


def as_markdown(record: SpeedrunRecord) -> str:
    lines = [["", "change", "minutes", "processor minutes", "validation", "above", "test", "machine", "logs"]]
    for letter, is_record, entry in lettered(record.entries):
        numbers = [with_range(values, ".1f") for values in (entry.minutes, entry.processor_minutes)]
        numbers += [with_range(entry.validation, ".2f"), f"{entry.lower_bound:.2f}", with_range(entry.test, ".2f")]
        logs = f"[{len(entry.seeds)} seeds]({entry.logs})"
        name = f"**{letter}, record**" if is_record else letter
        lines.append([name, entry.change, *numbers, entry.machine, logs])
    facts = (
        "multi30k, English-German: how soon a model translates captions well. Means over the seeds, with the range; "
        "sacreBLEU of the validation set and of test_2016_flickr; lower bound of the validation mean at 95 % "
        "confidence. Tokenization and first embeddings, which precede training, are not timed. A record has more than "
        f"{TARGET} in {BUDGET} processor minutes at most, and in fewer than any before it on its machine. All rules, "
        "and how to enter in one command: `recipes/benchmarks/speedrun.py`."
    )
    picture = "![Validation BLEU and processor minutes of each line's trainings, with target and budget](speedrun.png)"
    commands = [f"- {letter}: `{e.run.command}`, commit `{e.run.commit}`" for letter, _, e in lettered(record.entries)]
    return "\n\n".join(["# Speedrun", facts, markdown_table(lines), picture, "\n".join(commands)]) + "\n"


def with_range(values: list[float], form: str) -> str:
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def plot(record: SpeedrunRecord, path: Path) -> None:
    """Plot validation BLEU and processor minutes of each training, in a column for each line."""
    lines = list(lettered(record.entries))
    figure = Figure(figsize=(max(7, 1 + 0.8 * len(lines)), 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for column, (_, is_record, entry) in enumerate(lines):
        color, seeds = "C2" if is_record else "C0", len(entry.seeds)
        places = [column + 0.6 * ((seed + 0.5) / seeds - 0.5) for seed in range(seeds)]  # no dot hides another
        above.plot(places, entry.validation, "o", color=color)
        above.hlines(entry.lower_bound, column - 0.35, column + 0.35, color=color)
        below.plot(places, entry.processor_minutes, "o", color=color)
    for axes, limit, name in ((above, TARGET, "target"), (below, BUDGET, "budget")):
        axes.axhline(limit, color="grey", linestyle="--")
        axes.text(-0.45, limit, f"{name}: {limit}", color="0.4", va="bottom")
        axes.grid(axis="y", alpha=0.3)
    above.set(ylabel="validation sacreBLEU")
    below.set(ylabel="processor minutes", xlabel="line of the table", ylim=(0, 1.2 * BUDGET))
    below.set_xticks(range(len(lines)), [letter for letter, _, _ in lines])
    figure.suptitle(
        "Speedrun: image captions, English to German\n"
        "dot: a training; bar: the mean is above it with 95 % confidence; green: a record",
        fontsize=11,
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    run_benchmark("speedrun", Arguments, measure, as_markdown, plot)


if __name__ == "__main__":
    main()
