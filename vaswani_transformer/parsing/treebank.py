"""Treebanks as parallel corpora of words and labels (6.3), with their vocabulary.

train.jsonl, validation.jsonl, test.jsonl   rows {"translation": {"en": words, "parse": sequence}}, and with "tree" the
                                            tree in brackets, where its sequence lacks the tags
tokenizer/                                  pieces of words, and the labels
manifest.json                               from which treebanks, with which options
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
from nltk import Tree

from ..io.files import (
    Json,
    Manifest,
    atomic_directory,
    find_damage,
    identify,
    locked,
    make_directory,
    manifest_digest,
    require_same_manifest,
)
from ..model.parse_sequence_vaswani import PARSE, ParseLabels
from ..model.tokenization_vaswani import VaswaniTokenizer
from .demo_treebank import demo_treebank
from .recombination import Recombiner
from .trees import normalize_tree, normalized_trees, sequence_of_tree, tree_in_one_line


DEMO = "demo"  # the embedded treebank, instead of a file
_FORMAT = 2  # increment it when the preparation changes, so that cached corpora are prepared again


@dataclass(frozen=True)
class TreebankOptions:
    """What becomes of treebanks.

    Attributes:
        train: Files of gold trees to train on; "demo" is the embedded treebank.
        silver: Files of a parser's own trees to train on, too.
        gold_copies: How often the gold trees count in an epoch, so that they are not lost among many silver ones.
        recombined_copies: New trees to train on, for each gold tree that allows them, with phrases and words of others.
        validation: Files of gold trees.
        test: Files of gold trees.
        language: Code of the language of the words.
        vocab_size: Entries of the vocabulary, labels and special ones included.
        keeps_tags: Whether words are their tags, as in the paper, or "XX", as in Vinyals et al. (2015).
    """

    train: Sequence[str]
    silver: Sequence[str] = ()
    gold_copies: int = 1
    recombined_copies: int = 0
    validation: Sequence[str] = ()
    test: Sequence[str] = ()
    language: str = "en"
    vocab_size: int = 16_000
    keeps_tags: bool = True


def prepare_treebank(directory: str | Path | None, options: TreebankOptions) -> dict[str, list[str]]:
    """Write treebanks as parallel corpora, and learn their vocabulary, unless that is done.

    Args:
        directory: Where to; by default in the cache of `datasets`, under a name that the files and options decide.
        options: The treebanks, and what becomes of them.

    Returns:
        The corpora by split, as `load_parallel_corpus` takes them.

    Raises:
        ValueError: A tree is malformed, a file has none, a label of a split is both tag and phrase, the vocabulary
            cannot have that size, or the directory holds corpora of other treebanks or options.
        OSError: A file is missing or cannot be written.
    """
    origin = None
    if directory is None:
        origin = _origin(options, {})
        name = f"treebank-{manifest_digest({**origin, 'format': _FORMAT})[:32]}"
        directory = Path(datasets.config.HF_DATASETS_CACHE, "vaswani_transformer", name)
    directory = Path(directory)
    if not directory.exists():
        make_directory("prepared", directory.parent)
        with locked(directory.parent / "treebanks", "prepared", wait=True):
            if not directory.exists():
                _write(directory, options, origin or _origin(options, {}))
    if (damage := find_damage(directory)) is not None:
        raise ValueError(f"prepared: {directory}: {damage}; delete it to prepare it anew")
    recorded = Manifest.load(directory).notes
    what, advice = f"prepared: {directory} was prepared otherwise:", f"name another directory, or delete {directory}"
    require_same_manifest(recorded, origin or _origin(options, recorded), what, advice)
    corpora = {split: _corpus(directory, split) for split in ("train", "validation", "test")}
    return {split: [str(path)] for split, path in corpora.items() if path.exists()}


def _corpus(directory: Path, split: str) -> Path:
    return directory / f"{split}.jsonl"


def _origin(options: TreebankOptions, known: dict[str, Json]) -> dict[str, Json]:
    files: dict[str, Json] = {
        name: [identify(file, known.get(name)) for file in getattr(options, name)]
        for name in ("train", "silver", "validation", "test")
    }
    return {**vars(options), **files}


def _write(directory: Path, options: TreebankOptions, origin: dict[str, Json]) -> None:
    with atomic_directory(directory, "prepared") as staging:
        counts = Counter[str]()
        _write_corpus(staging, "train", options.train, options, counts, options.gold_copies)
        _write_corpus(staging, "train", options.silver, options, counts)
        if options.recombined_copies:
            gold = [tree for file in options.train for tree in _normalized_trees(file, "train")]
            with open(_corpus(staging, "train"), "a", encoding="utf-8") as corpus:
                corpus.writelines(_row(tree, options) for tree in Recombiner(gold).copies(options.recombined_copies))
        for split in ("validation", "test"):
            _write_corpus(staging, split, getattr(options, split), options, Counter())
        labels = ParseLabels.from_counts(counts)
        with open(_corpus(staging, "train"), encoding="utf-8") as corpus:
            words = (json.loads(line)["translation"][options.language] for line in corpus)
            tokenizer = VaswaniTokenizer.train(words, options.vocab_size, show_progress=False, labels=labels.names)
        tokenizer.save_pretrained(staging / "tokenizer")
        Manifest.of(staging, **origin).save(staging)


def _write_corpus(
    directory: Path, split: str, files: Sequence[str], options: TreebankOptions, labels: Counter[str], copies: int = 1
) -> None:
    """Append the trees of some files to a corpus, and add their labels to the counts of those already in it."""
    for file in files:
        is_empty = True
        with open(_corpus(directory, split), "a", encoding="utf-8") as corpus:
            for tree in _normalized_trees(file, split):
                is_empty = False
                labels.update(sequence_of_tree(tree, options.keeps_tags))
                corpus.write(_row(tree, options) * copies)
        if is_empty:
            raise ValueError(f"{split}: {file} has no trees; give a treebank in brackets")
        try:
            ParseLabels.from_counts(labels)
        except ValueError as error:
            raise ValueError(f"{split}: {file}: {error}") from None


def _normalized_trees(file: str, split: str) -> Iterator[Tree]:
    return filter(None, map(normalize_tree, demo_treebank(split))) if file == DEMO else normalized_trees(file)


def _row(tree: Tree, options: TreebankOptions) -> str:
    """A line of a corpus."""
    words, sequence = " ".join(tree.leaves()), " ".join(sequence_of_tree(tree, options.keeps_tags))
    row: dict[str, Json] = {"translation": {options.language: words, PARSE: sequence}}
    if not options.keeps_tags:
        row["tree"] = tree_in_one_line(tree)
    return json.dumps(row, ensure_ascii=False) + "\n"
