"""Filtering a noisy corpus: how much of the noise `filter.py` finds, and what that is worth in BLEU.

    python recipes/benchmarks/noise.py --work runs/noise --corpus train.en train.de \
        --validation valid.en valid.de --test test.en test.de

Of the pairs, `--share` are made noisy: half of these exchange their translations, half lose the second half of its
words. A model of both directions learns from all pairs, noise included, as nobody knows which are noisy; filter.py
then removes as many pairs as are noisy. At last three models are trained for equal numbers of steps of as many tokens,
and so for equal times: on all pairs, on those that the filter kept, and on those that are not noisy. Every training
uses `configs/small.yaml` and one thread. Models and filtered corpora that are already in `--work` are used again.
Writes `noise.md` and `noise.json`.
"""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frame import RECIPES, TrainingArguments, headline, recipe, require_same_work, run_benchmark, train_models

from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.files import make_directory
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.options.arguments import COUNT, Interval, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance, RunRecord


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
KINDS = CLEAN, EXCHANGED, SHORTENED = "clean", "exchanged", "shortened"


@dataclass
class Arguments(TrainingArguments):
    """Options of the benchmark."""

    share: float = option(0.2, "Share of the pairs to make noisy.", Interval(above=0, below=1))
    filter_steps: int = option(1500, "Steps of training the model that filters.", COUNT)
    steps: int = option(1500, "Steps of training each model that is compared.", COUNT)


@dataclass(frozen=True)
class Pair:
    """A pair of the noisy corpus, and what was done to it."""

    source: str
    target: str
    kind: str


@dataclass(frozen=True)
class Training:
    """sacreBLEU of a model, and what it was trained on."""

    pairs: int
    epochs: float
    validation: float
    test: float


@dataclass(frozen=True)
class NoiseRecord(Record):
    """`noise.json`.

    Attributes:
        run: Command, commit and machine.
        share: Of the pairs that are noisy, and of those removed.
        filter_steps: Steps of training of the model that filters.
        steps: Steps of training of each model that is compared.
        filter_bleu: Validation BLEU of the model that filters.
        pairs: Number of pairs by kind.
        found: Share of them that was removed, by kind, for each cost.
        trainings: By the pairs trained on.
    """

    run: Provenance
    share: float
    filter_steps: int
    steps: int
    filter_bleu: float
    pairs: dict[str, int]
    found: dict[str, dict[str, float]]
    trainings: dict[str, Training]


def make_noise(sources: list[str], targets: list[str], share: float, seed: int = 0) -> list[Pair]:
    """The pairs in their order, `share` of them noisy: no exchanged one keeps its own translation.

    Raises:
        ValueError: There are too few pairs to exchange two.
    """
    count = round(share * len(sources))
    noisy = random.Random(seed).sample(range(len(sources)), count)
    exchanged, shortened = noisy[: count // 2], noisy[count // 2 :]
    if len(exchanged) < 2:
        raise ValueError(f"share: of {len(sources)} pairs, {share} are too few to exchange translations")
    pairs = [Pair(source, target, CLEAN) for source, target in zip(sources, targets, strict=True)]
    for row, other in zip(exchanged, exchanged[1:] + exchanged[:1], strict=True):
        pairs[row] = Pair(sources[row], targets[other], EXCHANGED)
    for row in shortened:
        words = targets[row].split()  # of one word, it stays
        pairs[row] = Pair(sources[row], " ".join(words[: max(1, len(words) // 2)]), SHORTENED)
    return pairs


def write_pairs(path: Path, pairs: list[Pair], args: Arguments) -> None:
    rows = ({args.source_language: pair.source, args.target_language: pair.target} for pair in pairs)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def train(corpora: dict[str, Path], args: Arguments, steps: int, **options: object) -> dict[str, RunRecord]:
    """Train a model of each corpus."""
    options = {"config": RECIPES / "configs/small.yaml", "max_steps": steps, "max_minutes": 100_000, **options}
    return train_models(Path(args.work), args, {name: {**options, "train": corpus} for name, corpus in corpora.items()})


def removed_pairs(corpus: Path, models: list[str], output: Path, share: float) -> set[tuple[str, ...]]:
    """What filter.py removes, as texts of source and target."""
    if not output.exists():
        options = ["--model", *models, "--corpus", corpus, "--remove", share, "--output", output]
        subprocess.run(recipe("filter.py", *options), env=ENVIRONMENT, check=True)
    with open(output / "removed.jsonl", encoding="utf-8") as file:
        return {tuple(value for value in json.loads(line).values() if isinstance(value, str)) for line in file}


def measure(args: Arguments) -> Iterator[NoiseRecord]:
    run, work = describe_run(), make_directory("work", args.work)
    languages = args.source_language, args.target_language
    corpus = load_parallel_corpus(args.corpus, *languages)["translation"]
    texts = dict.fromkeys(tuple(pair[language].strip() for language in languages) for pair in corpus)
    sources, targets = map(list, zip(*texts, strict=True))  # without repetitions, which filter.py removes first
    pairs = make_noise(sources, targets, args.share)
    require_same_work(work, args, ("share", "filter_steps", "steps"))
    write_pairs(work / "noisy.jsonl", pairs, args)
    write_pairs(work / "clean.jsonl", [pair for pair in pairs if pair.kind == CLEAN], args)
    (judge,) = train({"judge": work / "noisy.jsonl"}, args, args.filter_steps, both_directions=True).values()
    model = str(work / "judge" / "seed-1")
    of_kind = {kind: [pair for pair in pairs if pair.kind == kind] for kind in KINDS}
    directed = [model, "--source_language", args.source_language, "--target_language", args.target_language]
    found = {}
    for cost, models in {"forward": directed, "dual": [*directed, "--reverse_model", model]}.items():
        removed = removed_pairs(work / "noisy.jsonl", models, work / "judge" / f"filtered_{cost}", args.share)
        found[cost] = {
            kind: sum((pair.source, pair.target) in removed for pair in own) / len(own) for kind, own in of_kind.items()
        }
    corpora = {
        "all": work / "noisy.jsonl",
        "those that the filter kept": work / "judge" / "filtered_dual" / "kept.jsonl",
        "those that are not noisy": work / "clean.jsonl",
    }
    trainings = {}
    for name, record in train(corpora, args, args.steps).items():
        with open(corpora[name], encoding="utf-8") as file:
            count = sum(1 for _ in file)
        trainings[name] = Training(count, record.training.epochs, record.validation.bleu.score, record.test.bleu.score)
    yield NoiseRecord(
        run=run,
        share=args.share,
        filter_steps=args.filter_steps,
        steps=args.steps,
        filter_bleu=judge.validation.bleu.score,
        pairs={kind: len(own) for kind, own in of_kind.items()},
        found=found,
        trainings=trainings,
    )


def as_markdown(record: NoiseRecord) -> str:
    """Two tables: what was removed, and the models."""
    kinds = [["cost", *(f"{kind}: {count:,}" for kind, count in record.pairs.items())]]
    kinds += [[cost, *(f"{share:.1%}" for share in of_kind.values())] for cost, of_kind in record.found.items()]
    models = [["trained on", "pairs", "passes", "validation BLEU", "test BLEU"]]
    for name, training in record.trainings.items():
        scores = f"{training.validation:.2f}", f"{training.test:.2f}"
        models.append([name, f"{training.pairs:,}", f"{training.epochs:.1f}", *scores])
    return (
        f"{headline('Filtering a noisy corpus', record.run)}\n\n{record.share:.0%} of the pairs were made noisy, and "
        f"as many removed, by a model of both directions trained on all of them for {record.filter_steps:,} steps "
        f"({record.filter_bleu:.1f} validation BLEU). What was removed, of each kind:\n\n{markdown_table(kinds)}\n\n"
        f"Models trained for {record.steps:,} steps of at most 1,500 tokens a side:\n\n{markdown_table(models)}\n"
    )


def main() -> None:
    run_benchmark("noise", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
