"""How soon a model translates image captions well: records of trainings, each faster than the one before.

The data are multi30k, English-German; the target is the sacreBLEU on test_2016_flickr of the model of
multi30k_en_de.yaml, 39.4, as a mean of three seeds. Train with `recipes/train_wmt.py`, once for each seed; the
validation BLEU decides on configurations. This program adds a line:

    python recipes/benchmarks/speedrun.py --runs runs/fast-1 runs/fast-2 runs/fast-3 --track open \
        --change "Muon, cooldown" --references ../shared/data/multi30k_en-de-fr/test_2016_flickr.de.gz

With `--together 2`, each two of the runs are one system: trained at once, they translate as an ensemble `--validation`,
with several alphas, and `--test`, with the best; each is a file of sources and one of references.

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
from vaswani_transformer.decoding.line_translation import TranslationOptions
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.evaluation.multi_bleu import corpus_bleu, paper_tokenizer
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.saved_model import open_model
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.records import Provenance, RunRecord


# Validation BLEU of the model that the target was taken from.
TARGET = 39.27

ALPHAS = (0.6, 1.0, 1.4)  # of an ensemble, as configs/multi30k_speedrun.yaml tries them for one model


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    runs: list[str] = option(MISSING, "Output directories of train_wmt.py, with one configuration and several seeds.")
    change: str = option(MISSING, "What they changed, in words.")
    track: str = option("open", "'paper' or 'open'.")
    together: int = option(1, "Runs, trained at once, that translate together, as an ensemble.", COUNT)
    validation: list[str] | None = option(None, "Sources and references of the validation set, of an ensemble.")
    test: list[str] | None = option(None, "Sources and references of the test set, of an ensemble.")
    references: str | None = option(
        None, "References of the test set, to score lowercased and tokenized text, as others report it."
    )

    def __post_init__(self) -> None:
        if len(self.runs) % self.together:
            raise ValueError(f"together: {len(self.runs)} runs are no groups of {self.together}")
        for name in ("validation", "test"):
            files = getattr(self, name)
            if (files is not None) != (self.together > 1):
                raise ValueError(f"{name}: give it with --together, where models translate, and only there")
            if files is not None and len(files) != 2:
                raise ValueError(f"{name}: give two files, sources and references")


@dataclass(frozen=True)
class Entry:
    """Trainings with one configuration; of lists, each item is of a seed or, if several translate together, of these.

    Attributes:
        change: What they changed.
        track: "paper" or "open".
        run: Command, commit and machine of the first training.
        parameters: Of a model.
        seeds: Of all trainings.
        minutes: Of training.
        processor_minutes: The same, summed over threads and processes; empty in older trainings.
        target_tokens: Sub-words trained on.
        validation: sacreBLEU.
        test: sacreBLEU; empty if it was not scored.
        lowercased: multi-bleu of the lowercased, tokenized test set; empty if it was not scored.
        processes: At once.
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


@dataclass(frozen=True)
class Scores:
    """sacreBLEU of one model, or of several that translate together; lists are empty if there is no test set.

    Attributes:
        validation: Of the validation set.
        test: Of the test set.
        translations: Of the test set.
    """

    validation: float
    test: list[float]
    translations: list[str]


def scores_of_model(directory: Path, record: RunRecord, needs_text: bool) -> Scores:
    """What a training recorded of its model."""
    assert record.validation is not None
    if record.test is None:
        return Scores(record.validation.bleu.score, [], [])
    found = [*read_lines(directory / "translations.test.txt")] if needs_text else []
    return Scores(record.validation.bleu.score, [record.test.bleu.score], found)


def scores_of_ensemble(directories: list[Path], validation: list[str], test: list[str]) -> Scores:
    """Translate with all models together, and with the alpha that is best on the validation set."""
    saved, options = open_model(directories[0], option="runs"), TranslationOptions()
    options.ensemble = [str(each) for each in directories[1:]]
    model, others = saved.load(), [each.load() for each in options.open_ensemble(saved)]

    def translate(files: list[str], alpha: float) -> tuple[float, list[str]]:
        sources, references = ([*read_lines(Path(name))] for name in files)
        found = translate_corpus(model, saved.tokenizer, sources, ensemble=others, length_penalty=alpha)
        return sacrebleu_score(found, references, "de").score, found

    bleu, alpha = max((translate(validation, alpha)[0], alpha) for alpha in ALPHAS)
    score, found = translate(test, alpha)
    return Scores(bleu, [score], found)


def lowercased_bleu(translations: list[str], references: Path) -> float:
    """multi-bleu of translations of the test set, lowercased and tokenized by Moses."""
    found, expected = ([line.lower() for line in lines] for lines in (translations, read_lines(references)))
    return corpus_bleu(found, expected, paper_tokenizer("de")).score


def entry_of(args: Arguments) -> Entry:
    directories = [Path(name) for name in args.runs]
    found = [RunRecord.load(directory / "all_results.json") for directory in directories]
    if None in (each.validation for each in found):
        raise ValueError("runs: a training has no validation scores; train with --validation")
    groups = [slice(start, start + args.together) for start in range(0, len(found), args.together)]
    trainings = [[each.training for each in found[group]] for group in groups]
    # The main process measures its own time; the others do as much.
    processor_seconds = [sum((each.processor_seconds or 0) * each.processes for each in group) for group in trainings]
    if args.validation is not None and args.test is not None:
        scores = [scores_of_ensemble(directories[group], args.validation, args.test) for group in groups]
    else:
        needs_text = args.references is not None
        scores = [scores_of_model(*each, needs_text) for each in zip(directories, found, strict=True)]
    is_tested = all(each.test for each in scores)
    lowercased = []
    if is_tested and args.references:
        lowercased = [lowercased_bleu(each.translations, Path(args.references)) for each in scores]
    return Entry(
        change=args.change,
        track=args.track,
        run=found[0].run,
        parameters=found[0].model.parameters,
        seeds=[each.settings.seed for each in found],
        minutes=[max(each.seconds for each in group) / 60 for group in trainings],
        processor_minutes=[seconds / 60 for seconds in processor_seconds if seconds],
        target_tokens=[sum(each.target_tokens for each in group) for group in trainings],
        validation=[each.validation for each in scores],
        test=[bleu for each in scores for bleu in each.test] if is_tested else [],
        lowercased=lowercased,
        processes=sum(each.processes for each in trainings[0]),
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
        seeds = str(len(entry.minutes))
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
