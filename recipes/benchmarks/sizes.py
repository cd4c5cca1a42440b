"""`configs/small.yaml` beside configurations made by hand, on corpora of several sizes, in equal minutes.

    python recipes/benchmarks/sizes.py --name captions --pairs 3000 --work runs/sizes --corpus train.en train.de \
        --validation valid.en valid.de --test test.en test.de

trains small.yaml with nothing but `--max_minutes`, and five other configurations, one thread each. Trainings that are
already in `--work` are not repeated. Each call adds a corpus to `sizes.json` and `sizes.md`, or replaces it. The
validation BLEU chooses the best configuration; how far small.yaml is from it shows on the test set.
"""

import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path

from frame import RECIPES, TrainingArguments, headline, require_same_work, run_benchmark, train_models

from vaswani_transformer.data.corpora import load_parallel_corpus, spread
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.files import atomic_write, make_directory
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.options.arguments import COUNT, POSITIVE, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


SMALL = "small.yaml"
_SMALL = {"config": RECIPES / "configs/small.yaml"}
CONFIGURATIONS: dict[str, dict[str, object]] = {
    SMALL: _SMALL,
    "dropout 0.2": {**_SMALL, "dropout": 0.2},
    "dropout 0.3, BPE-dropout 0.1": {**_SMALL, "dropout": 0.3, "bpe_dropout": 0.1},
    "d_model 128": {**_SMALL, "d_model": 128, "d_ff": 512},
    "d_model 256": {**_SMALL, "d_model": 256, "d_ff": 1024},
    "the paper's recipe, d_model 256": {
        "config": RECIPES / "configs/multi30k_en_de.yaml",
        "min_frequency": 10,
        "max_steps": 1_000_000,
    },
}


@dataclass
class Arguments(TrainingArguments):
    """Options of the benchmark."""

    name: str = option(MISSING, "What the corpus is called in the table, such as 'captions'.")
    pairs: int | None = option(None, "Train on this number of pairs, evenly spaced; by default on all.", COUNT)
    minutes: float = option(20, "Minutes of each training.", POSITIVE)


@dataclass(frozen=True)
class Training:
    """sacreBLEU of a model, and how it was trained."""

    steps: int
    epochs: float
    minutes: float
    processor_minutes: float
    validation: float
    test: float


@dataclass(frozen=True)
class Corpus:
    """The trainings on a corpus.

    Attributes:
        run: Command, commit and machine.
        name: Of the corpus.
        pairs: Number of pairs trained on.
        trainings: By configuration.
    """

    run: Provenance
    name: str
    pairs: int
    trainings: dict[str, Training]

    @property
    def best(self) -> str:
        """The configuration with the best validation BLEU."""
        return max(self.trainings, key=lambda name: self.trainings[name].validation)


@dataclass(frozen=True)
class SizesRecord(Record):
    """`sizes.json`, in the order of names and sizes."""

    corpora: list[Corpus] = field(default_factory=list)


def read_pairs(args: Arguments) -> list[dict[str, str]]:
    """The pairs to train on."""
    corpus = load_parallel_corpus(args.corpus, args.source_language, args.target_language)["translation"]
    return [corpus[row] for row in spread(len(corpus), args.pairs or len(corpus)).tolist()]


def train(args: Arguments, directory: Path, corpus: Path) -> dict[str, Training]:
    """Train each configuration that is not trained yet."""
    options = {"train": corpus, "max_minutes": args.minutes}
    models = {name: {**options, **configuration} for name, configuration in CONFIGURATIONS.items()}
    return {
        name: Training(
            steps=found.training.steps,
            epochs=found.training.epochs,
            minutes=found.training.seconds / 60,
            processor_minutes=found.training.processor_seconds / 60,
            validation=found.validation.bleu.score,
            test=found.test.bleu.score,
        )
        for name, found in train_models(directory, args, models).items()
    }


def measure(args: Arguments) -> Iterator[SizesRecord]:
    """The corpora so far, and the given one."""
    run = describe_run()
    path = Path(args.output, "sizes.json")
    if "/" in args.name:
        raise ValueError(f"name: is part of a directory's name, and cannot have a /: {args.name!r}")
    pairs = read_pairs(args)
    directory = make_directory("work", Path(args.work, f"{args.name}-{args.pairs or 'all'}"))
    require_same_work(directory, args, ("minutes",))
    corpus = directory / "train.jsonl"
    atomic_write(corpus, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
    found = Corpus(run, args.name, len(pairs), train(args, directory, corpus))
    earlier = SizesRecord.load(path).corpora if path.exists() else []  # after hours, in which others may be added
    others = [each for each in earlier if (each.name, each.pairs) != (found.name, found.pairs)]
    yield SizesRecord(sorted([*others, found], key=lambda each: (each.name, each.pairs)))


def as_markdown(record: SizesRecord) -> str:
    """A table for each corpus."""
    parts = [
        "# A size for the corpus\n\n`configs/small.yaml` with nothing but `--max_minutes`, beside configurations made "
        "by hand, one training each on one thread. Configurations differ from small.yaml in what their name says; the "
        "last is `configs/multi30k_en_de.yaml` with small.yaml's vocabulary. The best validation BLEU is bold."
    ]
    for corpus in record.corpora:
        lines = [["", "steps", "passes", "minutes", "processor minutes", "validation BLEU", "test BLEU"]]
        for name, training in corpus.trainings.items():
            validation, times = f"{training.validation:.2f}", (training.minutes, training.processor_minutes)
            lines.append(
                [
                    name,
                    f"{training.steps:,}",
                    f"{training.epochs:.1f}",
                    *(f"{minutes:.1f}" for minutes in times),
                    f"**{validation}**" if name == corpus.best else validation,
                    f"{training.test:.2f}",
                ]
            )
        ours, best = corpus.trainings[SMALL], corpus.trainings[corpus.best]
        behind = [round(getattr(ours, split) - getattr(best, split), 2) + 0.0 for split in ("validation", "test")]
        title = headline(f"{corpus.name}, {corpus.pairs:,} pairs", corpus.run).replace("# ", "## ", 1)
        parts.append(
            f"{title}\n\n{markdown_table(lines)}\n\nsmall.yaml: {behind[0]:+.2f} validation and {behind[1]:+.2f} test "
            f"BLEU from the best."
        )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    run_benchmark("sizes", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
