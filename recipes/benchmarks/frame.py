"""What the benchmarks share: the program, searches timed in turn, and the files of a result."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from rich.progress import track
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.corpora import resolve_languages, spread
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.evaluation.test_sets import read_text
from vaswani_transformer.experiments.sweep import Job, train_all
from vaswani_transformer.io.console import exit_on_error, printable
from vaswani_transformer.io.files import atomic_write, make_directory, read_json, require_same_manifest
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.options.arguments import COUNT, RecipeParser, option
from vaswani_transformer.runs.records import Provenance, RunRecord
from vaswani_transformer.runs.run_directory import RECORD_NAME


if TYPE_CHECKING:
    import ctranslate2

RECIPES = Path(__file__).resolve().parents[1]

# Tokens that a translation may have more than its source (6.1).
OVER_SOURCE = 50

# From token ids of sources to token ids of translations, without EOS.
Search = Callable[[list[list[int]]], list[list[int]]]

Result = TypeVar("Result", bound=Record)


@dataclass
class BenchmarkArguments:
    """Options of the benchmark."""

    output: str = option(str(Path(__file__).parent), "Where the table and the record go.")


@dataclass
class TrainingArguments(BenchmarkArguments):
    """Options of a benchmark that trains models of a corpus."""

    work: str = option(MISSING, "Directory for the corpora and the models.")
    corpus: list[str] = option(MISSING, "Training pairs, as for --train of train_wmt.py.")
    validation: list[str] = option(MISSING, "Validation corpus.")
    test: list[str] = option(MISSING, "Test corpus.")
    source_language: str | None = option(None, "Code of the source language; by default as for train_wmt.py.")
    target_language: str | None = option(None, "Code of the target language.")
    options: list[str] = option([], "More options of all trainings, such as d_model=64.")
    parallel: int = option(1, "Trainings at the same time, one thread each.", COUNT)

    def __post_init__(self) -> None:
        for setting in self.options:
            if not setting.partition("=")[0].isidentifier() or "=" not in setting:
                raise ValueError(f"options: must be name=value, such as d_model=64, is {setting!r}")
        languages = self.source_language, self.target_language
        corpora = (self.corpus, self.validation, self.test)
        self.source_language, self.target_language = resolve_languages(corpora, *languages)


def run_benchmark(
    name: str,
    arguments: type[BenchmarkArguments],
    measure: Callable[[Any], Iterator[Result]],
    as_markdown: Callable[[Result], str],
    plot: Callable[[Result, Path], None] | None = None,
) -> None:
    """Run a benchmark with the options of the command line, and write `name.json` and `name.md`.

    Args:
        name: Name of the program and of its files.
        arguments: Its options.
        measure: Yields the result, or results that replace each other, so that an interruption leaves the last.
        as_markdown: The table of a result, which is also printed.
        plot: Draws a result into a file, `name.png`.
    """
    (args,) = RecipeParser((arguments,)).parse()
    with exit_on_error(f"{name}.py"):
        output = make_directory("output", args.output)
        for result in measure(args):
            text = as_markdown(result)
            result.save(output / f"{name}.json")
            atomic_write(output / f"{name}.md", text)
            if plot is not None:
                plot(result, output / f"{name}.png")
            print(printable(text))


def recipe(name: str, *arguments: object) -> list[str]:
    """The command that runs a recipe, such as "cluster/ray_data.py"."""
    return [sys.executable, str(RECIPES / name), *map(str, arguments)]


def headline(title: str, run: Provenance) -> str:
    """The title of a result, and the command, the commit and the machine."""
    return f"# {title}\n\n`{run.command}`, commit `{run.commit}`, {run.date}, {run.hardware}"


def require_same_work(directory: Path, args: TrainingArguments, own: Sequence[str]) -> None:
    """Raise a ValueError if trainings in a directory were begun with other corpora or options, or `own` ones."""
    names = ("corpus", "validation", "test", "source_language", "target_language", "options", *own)
    path, kept = directory / "options.json", {name: getattr(args, name) for name in names}
    if path.exists() and any(directory.glob(f"*/*/{RECORD_NAME}")):  # else all that it has are options that failed
        advice = "give the same, or another directory with --work"
        require_same_manifest(read_json(path), kept, f"work: {directory} was begun with other options,", advice)
    else:
        atomic_write(path, json.dumps(kept))


def train_models(
    directory: Path, args: TrainingArguments, models: Mapping[str, Mapping[str, object]]
) -> dict[str, RunRecord]:
    """Train the models that are not trained yet, and resume killed trainings.

    Args:
        directory: Receives a directory for each model.
        args: The corpora to validate and to test on, options of all models, and the number of concurrent trainings.
        models: For each name of a model, options of `train_wmt.py`.

    Raises:
        ValueError: An option of `args.options` is one that the benchmark sets for all models.
        ChildProcessError: A training failed.
    """
    jobs = [Job(name, 1, directory) for name in models]
    common: dict[str, object] = {name: value for name, _, value in (each.partition("=") for each in args.options)}
    own: dict[str, object] = {
        "use_cpu": True,
        "source_language": args.source_language,
        "target_language": args.target_language,
    }
    for name in common:
        if name in own or name in jobs[0].options or all(name in options for options in models.values()):
            raise ValueError(f"options: the benchmark sets {name}; leave it out")
    files = ["--validation", *args.validation, "--test", *args.test]

    def command(job: Job) -> list[str]:
        options = {**common, **own, **models[job.row], **job.options}
        named = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [str(RECIPES / "train_wmt.py"), *named, *files]

    failed = train_all(jobs, [{"OMP_NUM_THREADS": "1"}] * args.parallel, command)
    if failed:
        raise ChildProcessError(f"training of {failed[0].name} failed; {failed[0].log} says why")
    return {job.row: job.results for job in jobs}


def require_cuda(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: there is no CUDA device; leave it out")


def read_sample(text: str, references: str | None, count: int) -> tuple[list[str], list[str] | None]:
    """Sentences from all over a text, blank ones left out, and their references; raises what `read_text` raises."""
    lines, translations = read_text(text, references)
    chosen = [line for line in spread(len(lines), count) if lines[line].strip()]
    return [lines[line].strip() for line in chosen], translations and [translations[line] for line in chosen]


def generate_search(model: PreTrainedModel, **settings: Any) -> Search:
    """The search of `generate` in one batch; `settings` are for it. Peers have one limit for all sentences."""
    padding, end = model.config.pad_token_id, model.config.eos_token_id
    is_ours = isinstance(model, VaswaniForConditionalGeneration)

    def search(sources: list[list[int]]) -> list[list[int]]:
        rows = [torch.tensor(ids) for ids in sources]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)  # [batch, source]
        limit = {} if is_ours else {"max_new_tokens": ids.shape[1] + OVER_SOURCE}
        inputs = {"input_ids": ids.to(model.device), "attention_mask": ids.ne(padding).long().to(model.device)}
        found = model.generate(**inputs, **limit, **settings)[:, 1:].tolist()
        return [row[: row.index(end)] if end in row else row for row in found]

    return search


def engine_search(translator: "ctranslate2.Translator", tokenizer: PreTrainedTokenizerBase, **options: Any) -> Search:
    """The search of CTranslate2 in one call; `options` are for `translate_batch`."""

    def search(sources: list[list[int]]) -> list[list[int]]:
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(source) for source in sources],
            max_decoding_length=max(map(len, sources)) + OVER_SOURCE,
            **options,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    return search


def in_batches(search: Search, size: int, is_sorted: bool = True) -> Search:
    """A search in batches of `size` sentences, of similar length or in input order."""

    def search_all(sources: list[list[int]]) -> list[list[int]]:
        order = list(range(len(sources)))
        if is_sorted:
            order.sort(key=lambda index: -len(sources[index]))
        outputs: list[list[int]] = [[] for _ in sources]
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            for index, output in zip(batch, search([sources[index] for index in batch]), strict=True):
                outputs[index] = output
        return outputs

    return search_all


@dataclass
class Measured:
    """The best times of a search, and what it found."""

    seconds: float = float("inf")
    processor_seconds: float = float("inf")  # of all threads
    outputs: list[list[int]] = field(default_factory=list)

    def same_as(self, other: "Measured") -> float:
        """Share of the sentences with the same translation."""
        pairs = zip(self.outputs, other.outputs, strict=True)
        return sum(mine == theirs for mine, theirs in pairs) / len(self.outputs)

    def bleu(self, tokenizer: PreTrainedTokenizerBase, references: list[str] | None) -> float | None:
        """sacreBLEU, if there are references."""
        if references is None:
            return None
        return sacrebleu_score(tokenizer.batch_decode(self.outputs, skip_special_tokens=True), references).score


def measure_in_turn(
    searches: Sequence[Search], sources: list[list[int]], rounds: int, description: str
) -> list[Measured]:
    """Time each search on all sentences, in rounds through all of them, so that a disturbance hits all alike."""
    found = [Measured() for _ in searches]
    for search in searches:
        search(sources[:4])  # the first call includes one-time work
    for _ in range(rounds):
        for search, best in track(list(zip(searches, found, strict=True)), description):
            start, processor_start = time.perf_counter(), time.process_time()
            best.outputs = search(sources)
            best.seconds = min(best.seconds, time.perf_counter() - start)
            best.processor_seconds = min(best.processor_seconds, time.process_time() - processor_start)
    return found
