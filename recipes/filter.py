"""Remove the noisiest pairs of a parallel corpus: those that a model finds least probable.

With a model of each direction, or one model of both directions, which is its own reverse model; or with one alone:

    python recipes/filter.py --model runs/en-de --reverse_model runs/de-en --corpus crawled.en crawled.de \
        --remove 0.2 --output runs/filtered
    python recipes/filter.py --model runs/both --reverse_model runs/both --corpus crawled.tsv --output runs/filtered
    accelerate launch recipes/filter.py --model runs/en-de --corpus crawled.tsv --output runs/filtered

The cost of a pair is its dual conditional cross-entropy (Junczys-Dowmunt, 2018): with the cross-entropies F of the
target given the source, and R of the source given the target, both in nats per sub-word, |F - R| + (F + R) / 2. Without
`--reverse_model` it is F. Up to `--remove`, pairs with a blank side and repetitions of a pair are removed first, and
then the costliest. The models should be trained on cleaner pairs of the same kind.

The output directory then has `kept.jsonl`, in the order of the corpus, for `--train`; `removed.jsonl`, in the order of
removal, with the costs; and `filter.json`, what was removed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import partial

import numpy as np
from datasets import Dataset

from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.data.corpus_languages import choose_languages
from vaswani_transformer.decoding.saved_model import SavedModel, open_model
from vaswani_transformer.evaluation.perplexity import nats_of_pairs
from vaswani_transformer.model.languages_vaswani import Directions
from vaswani_transformer.options.arguments import Interval, option
from vaswani_transformer.options.decoding import DecodingArguments
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.system.console import PlainConsole
from vaswani_transformer.system.files import atomic_directory, atomic_write, require_new_directory
from vaswani_transformer.system.messages import errors_begin_with
from vaswani_transformer.system.processes import main_process_first, on_main_process
from vaswani_transformer.system.typed_json import Record


@dataclass
class FilterArguments(DecodingArguments):
    """Options of filter.py: sentence pairs, and models of both directions or of one."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    reverse_model: str | None = option(None, "A model of the opposite direction, or of both.")
    corpus: list[str] = option(MISSING, "The pairs, as for --train of train_wmt.py.")
    columns: list[str] | None = option(None, "Columns of source and target in tables.")
    source_language: str | None = option(None, "Code of the source language; by default the model's or the corpus'.")
    target_language: str | None = option(None, "Code of the target language; by default the model's or the corpus'.")
    output: str = option(MISSING, "Directory to create.")
    remove: float = option(0.2, "Share of the pairs to remove.", Interval(minimum=0, maximum=1))


@dataclass(frozen=True)
class DirectedModel:
    """A saved model, and the direction in which it reads the pairs."""

    saved: SavedModel
    languages: tuple[str, str]
    tag: str | None  # at the start of each source, for a model with several directions


@dataclass(frozen=True)
class FilterRecord(Record):
    """`filter.json`; costs are in nats per sub-word.

    Attributes:
        useless: Pairs with a blank side, or that repeat an earlier pair.
        threshold: Cost of the pair that was removed last; None if none was removed.
        mean_cost_kept, mean_cost_removed: None if there are no such pairs.
    """

    run: Provenance
    pairs: int
    useless: int
    removed: int
    threshold: float | None
    mean_cost_kept: float | None
    mean_cost_removed: float | None


def main() -> None:
    with recipe_options(FilterArguments, "repeat the command") as args:
        require_new_directory("output", args.output)
        models = open_models(args)
        with main_process_first():
            corpus = load_parallel_corpus(args.corpus, *models[0].languages, columns=args.columns)
        entropies = [cross_entropies(args, model, corpus) for model in models]
        on_main_process(lambda: write(args, corpus, models[0].languages, entropies))


def open_models(args: FilterArguments) -> list[DirectedModel]:
    """Open the model, and the reverse model if there is one, without reading their weights.

    Raises:
        ValueError: A model does not translate between the languages; or as from `choose_languages`.
    """
    check = partial(open_model, task="translation", trust_remote_code=args.trust_remote_code)
    saved = check(args.model)
    given = args.source_language, args.target_language
    languages = choose_languages([args.corpus], *given, [saved.config], is_required=True)
    models = [DirectedModel(saved, languages, Directions(saved.config).tag(*languages))]
    if args.reverse_model is not None:
        saved, languages = check(args.reverse_model, option="reverse_model"), languages[::-1]
        with errors_begin_with("reverse_model"):
            models.append(DirectedModel(saved, languages, Directions(saved.config).tag(*languages)))
    return models


def cross_entropies(args: FilterArguments, model: DirectedModel, corpus: Dataset) -> np.ndarray:
    """Nats per sub-word of each target, EOS included: `[pairs]`."""
    with main_process_first():
        encoded = encode_corpus(corpus, model.saved.tokenizer, *model.languages, source_tag=model.tag)
    loaded = model.saved.load_to_decode(args.precision)
    nats = nats_of_pairs(loaded, model.saved.tokenizer, encoded, args.tokens_per_batch)
    return nats / np.asarray(encoded["target_length"][:])


def write(args: FilterArguments, corpus: Dataset, languages: tuple[str, str], entropies: list[np.ndarray]) -> None:
    """Write kept and removed pairs and the record, and show the worst."""
    costs = dual_cross_entropy(*entropies)
    is_useless = useless_pairs(corpus)
    worst_first = np.lexsort((-costs, ~is_useless))
    removed, kept = np.split(worst_first, [round(args.remove * len(costs))])
    record = FilterRecord(
        run=describe_run(),
        pairs=len(costs),
        useless=int(is_useless.sum()),
        removed=len(removed),
        threshold=float(costs[removed[-1]]) if len(removed) else None,
        mean_cost_kept=float(costs[kept].mean()) if len(kept) else None,
        mean_cost_removed=float(costs[removed].mean()) if len(removed) else None,
    )
    columns = dict(zip(("cost", "forward", "backward"), (costs, *entropies), strict=False))
    with atomic_directory(args.output) as directory:
        atomic_write(directory / "kept.jsonl", json_lines(corpus, sorted(kept), languages))
        atomic_write(directory / "removed.jsonl", json_lines(corpus, removed, languages, columns))
        record.save(directory / "filter.json")
    console = PlainConsole()
    costliest = worst_first[record.useless :][:10].tolist()
    rows = ([f"{costs[row]:.2f}", *map(corpus[row]["translation"].get, languages)] for row in costliest)
    console.print_table(("cost", *languages), rows, title="The costliest pairs")
    console.print(f"{record.useless:,} pairs have a blank side or repeat another; they are removed first")
    console.print(f"{args.output}: {len(kept):,} pairs kept, {record.removed:,} removed")


def dual_cross_entropy(forward: np.ndarray, backward: np.ndarray | None = None) -> np.ndarray:
    """Dual conditional cross-entropy, which ranks noisy pairs highest (Junczys-Dowmunt 2018): `[pairs]`.

    `forward` and `backward` are cross-entropies per token `[pairs]` in both directions; with one, it is the cost.
    """
    return forward if backward is None else np.abs(forward - backward) + (forward + backward) / 2


def useless_pairs(corpus: Dataset) -> np.ndarray:
    """Whether each pair has a blank side or repeats an earlier pair: `[pairs]`."""
    is_useless, seen = np.zeros(len(corpus), dtype=bool), set()
    for row, translation in enumerate(corpus["translation"]):
        texts = tuple(text.strip() for text in translation.values())
        is_useless[row] = hash(texts) in seen or not all(texts)
        seen.add(hash(texts))  # of 64 bits; the texts would fill the memory
    return is_useless


def json_lines(
    corpus: Dataset, rows: Iterable[int], languages: tuple[str, str], columns: Mapping[str, np.ndarray] | None = None
) -> Iterator[bytes]:
    """A line of JSON for each of some pairs, with further columns, `[pairs]` each."""
    for row in map(int, rows):
        translation = corpus[row]["translation"]
        numbers = {name: round(float(values[row]), 4) for name, values in (columns or {}).items()}
        line = {**{language: translation[language] for language in languages}, **numbers}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


if __name__ == "__main__":
    main()
