"""Treebanks as parallel corpora of words and labels (6.3), with their vocabulary.

train.jsonl, validation.jsonl, test.jsonl   rows {"translation": {"en": words, "parse": sequence}, "tree": brackets}
tokenizer/                                  pieces of words, and the labels
manifest.json                               the treebanks and options
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
from nltk import Tree

from ..data.text_files import read_lines
from ..model.parse_sequence_vaswani import PARSE, ParseLabels
from ..options.data import TreebankOptions
from ..system.files import Json, atomic_directory, locked
from ..system.manifests import Manifest, content_digest, find_damage, identify, require_same_origin
from .tokenizer import VaswaniParsingTokenizer
from .trees import normalize_tree, read_trees, tree_in_one_line, tree_to_sequence


_SPLITS = ("train", "validation", "test")

# 6,600 trees of a small grammar of English, written by the generator parsing/demo_treebank.py of commit c5a46b3.
_DEMO = Path(__file__).with_name("demo")
_FORMAT = 3  # increment it when the preparation changes, to invalidate earlier results


def read_treebank(file: str, split: str) -> Iterator[Tree]:
    """The normalised trees of a file, or of a split of the embedded treebank, "demo".

    Raises:
        ValueError: A tree is malformed, or there are none; messages call the file's option `split`.
    """
    path = _DEMO / f"{split}.mrg.xz" if file == "demo" else file
    trees = filter(None, map(normalize_tree, read_trees(path)))
    first = next(trees, None)
    if first is None:
        raise ValueError(f"{split}: {file} has no trees; give a treebank in brackets")
    yield from chain([first], trees)


def prepare_treebank(directory: str | Path | None, options: TreebankOptions) -> dict[str, list[str]]:
    """Write treebanks as parallel corpora, and learn their vocabulary, unless already done.

    Without a directory, they are in the cache of `datasets`, named by the files and options. Returns the corpora by
    split, as arguments of `load_parallel_corpus`.

    Raises:
        ValueError: A tree is malformed, a file has no trees, a label of a split is both tag and phrase, the vocabulary
            cannot have the requested size, or the directory holds corpora of other treebanks or options.
        OSError: A file is missing or cannot be written.
    """
    origin: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(TreebankOptions)}
    origin["format"] = _FORMAT
    for name in (*_SPLITS, "silver"):
        origin[name] = [file if file == "demo" else identify(file) for file in origin[name] or ()]
    cache = Path(datasets.config.HF_DATASETS_CACHE, "vaswani_transformer")
    directory = Path(directory or cache / f"treebank-{content_digest(origin)[:32]}")
    if not directory.exists():
        with locked(directory.parent / "treebanks", "prepared", wait=True):
            if not directory.exists():
                _write(directory, options, origin)
    if (damage := find_damage(directory)) is not None:
        raise ValueError(f"prepared: {directory}: {damage}; delete it to prepare it anew")
    what = f"prepared: {directory} was prepared with other treebanks or options; it differs in"
    advice = f"name another directory, or delete {directory}"
    require_same_origin(Manifest.load(directory).notes, origin, what, advice)
    return {split: [str(_corpus(directory, split))] for split in _SPLITS if origin[split]}


def _corpus(directory: Path, split: str) -> Path:
    return directory / f"{split}.jsonl"


def _write(directory: Path, options: TreebankOptions, origin: dict[str, Json]) -> None:
    def read(split: str) -> Iterator[Tree]:
        return chain.from_iterable(read_treebank(file, split) for file in getattr(options, split) or ())

    gold = (tree for tree in read("train") for _ in range(options.gold_copies))
    trees = {"train": chain(gold, read("silver")), "validation": read("validation"), "test": read("test")}
    with atomic_directory(directory, "prepared") as staging:
        labels = {
            split: _write_corpus(_corpus(staging, split), trees[split], options) for split in _SPLITS if origin[split]
        }
        rows = map(json.loads, read_lines(_corpus(staging, "train")))
        words = (row["translation"][options.source_language] for row in rows)
        tokenizer = VaswaniParsingTokenizer.train_with_labels(words, labels["train"].names, options.vocab_size)
        tokenizer.save_pretrained(staging / "tokenizer")
        Manifest.from_files(staging, notes=origin).save(staging)


def _write_corpus(path: Path, trees: Iterable[Tree], options: TreebankOptions) -> ParseLabels:
    """Write trees as a corpus; returns their labels."""
    counts = Counter[str]()
    with open(path, "w", encoding="utf-8") as corpus:
        for tree in trees:
            sequence = tree_to_sequence(tree, options.keeps_tags)
            counts.update(sequence)
            pair = {options.source_language: " ".join(tree.leaves()), PARSE: " ".join(sequence)}
            row = {"translation": pair, "tree": tree_in_one_line(tree)}
            corpus.write(json.dumps(row, ensure_ascii=False) + "\n")
    try:
        return ParseLabels.from_counts(counts)
    except ValueError as error:
        raise ValueError(f"{path.stem}: {error}") from None


@dataclass(frozen=True)
class GoldTrees:
    """Sentences of a treebank as words, their trees in brackets, and those that also occur in the training data."""

    sentences: list[list[str]]
    trees: list[str]
    seen: Set[str] = frozenset()

    @classmethod
    def load(cls, file: str | Path, language: str, train: Iterable[str | Path] = ()) -> "GoldTrees":
        """The trees of a corpus that `prepare_treebank` wrote.

        Args:
            file: The corpus.
            language: Code of the language of the words.
            train: Corpora of the training data, to determine which trees are also in them.
        """
        lines = [*read_lines(Path(file))]
        seen = {*lines}.intersection(line for each in train for line in read_lines(Path(each)))
        rows = [json.loads(line) for line in lines]
        sentences = [row["translation"][language].split() for row in rows]
        return cls(sentences, [row["tree"] for row in rows], {json.loads(line)["tree"] for line in seen})
