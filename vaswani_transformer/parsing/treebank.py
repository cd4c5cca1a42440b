"""Treebanks as parallel corpora of words and labels (6.3), with their vocabulary.

train.jsonl, validation.jsonl, test.jsonl   rows {"translation": {"en": words, "parse": sequence}}, and "tree", the tree
                                            in brackets, if its sequence lacks the tags
tokenizer/                                  pieces of words, and the labels
manifest.json                               the treebanks and options
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
from nltk import Tree

from ..data.corpora import evenly_spaced
from ..data.text_files import read_lines
from ..model.parse_sequence_vaswani import PARSE, ParseLabels, parse_of_sequence
from ..options.data import TreebankOptions
from ..system.files import Json, atomic_directory, locked
from ..system.manifests import Manifest, content_digest, find_damage, identify, require_same_origin
from .tokenizer import VaswaniParsingTokenizer
from .trees import normalized_trees, tree_in_one_line, tree_to_sequence


_SPLITS = ("train", "validation", "test")

# 6,600 trees of a small grammar of English, written by the generator parsing/demo_treebank.py of commit c5a46b3.
_DEMO = Path(__file__).with_name("demo")
_FORMAT = 2  # increment it when the preparation changes, to invalidate earlier results


def read_treebank(file: str, split: str) -> Iterator[Tree]:
    """The normalised trees of a file, or of a split of the embedded treebank, "demo"."""
    return normalized_trees(_DEMO / f"{split}.mrg.xz" if file == "demo" else file)


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
    trees = {split: _read_trees(split, getattr(options, split)) for split in _SPLITS}
    gold = (tree for tree in trees["train"] for _ in range(options.gold_copies))
    trees["train"] = chain(gold, _read_trees("silver", options.silver))
    with atomic_directory(directory, "prepared") as staging:
        labels = {
            split: _write_corpus(_corpus(staging, split), trees[split], options)
            for split in _SPLITS
            if getattr(options, split)
        }
        words = (
            json.loads(line)["translation"][options.source_language] for line in read_lines(_corpus(staging, "train"))
        )
        tokenizer = VaswaniParsingTokenizer.train_with_labels(words, labels["train"].names, options.vocab_size)
        tokenizer.save_pretrained(staging / "tokenizer")
        Manifest.from_files(staging, **origin).save(staging)


def _read_trees(name: str, files: Iterable[str] | None) -> Iterator[Tree]:
    """The trees of the files of an option."""
    for file in files or ():
        has_trees = False
        for tree in read_treebank(file, name):
            has_trees = True
            yield tree
        if not has_trees:
            raise ValueError(f"{name}: {file} has no trees; give a treebank in brackets")


def _write_corpus(path: Path, trees: Iterable[Tree], options: TreebankOptions) -> ParseLabels:
    """Write trees as a corpus; returns their labels."""
    counts = Counter[str]()
    with open(path, "w", encoding="utf-8") as corpus:
        for tree in trees:
            sequence = tree_to_sequence(tree, options.keeps_tags)
            counts.update(sequence)
            row: dict[str, Json] = {
                "translation": {options.source_language: " ".join(tree.leaves()), PARSE: " ".join(sequence)}
            }
            if not options.keeps_tags:
                row["tree"] = tree_in_one_line(tree)
            corpus.write(json.dumps(row, ensure_ascii=False) + "\n")
    try:
        return ParseLabels.from_counts(counts)
    except ValueError as error:
        raise ValueError(f"{path.stem}: {error}") from None


@dataclass(frozen=True)
class GoldTrees:
    """Sentences of a treebank as words, their trees in brackets, and the trees that the training data also have."""

    sentences: list[list[str]]
    trees: list[str]
    seen: Set[str] = frozenset()

    @classmethod
    def load(cls, file: str | Path, language: str, train: Iterable[str | Path] = ()) -> "GoldTrees":
        """The trees of a corpus that `prepare_treebank` wrote, with the tags that EVALB needs to delete punctuation.

        Args:
            file: The corpus.
            language: Code of the language of the words.
            train: Corpora of the training data, to determine which trees are also in them.
        """
        lines = [*read_lines(Path(file))]
        seen = {*lines}.intersection(line for each in train for line in read_lines(Path(each)))
        rows = [json.loads(line) for line in lines]
        sentences, sequences = ([row["translation"][side].split() for row in rows] for side in (language, PARSE))
        labels = ParseLabels.from_counts(Counter(chain.from_iterable(sequences)))  # training trees may lack some labels
        trees = [
            row.get("tree") or parse_of_sequence(sequence, words, labels).tree
            for row, sequence, words in zip(rows, sequences, sentences, strict=True)
        ]
        return cls(sentences, trees, {tree for line, tree in zip(lines, trees, strict=True) if line in seen})

    def sample(self, size: int) -> "GoldTrees":
        """`size` sentences, evenly spaced; all, if there are fewer."""
        indices = evenly_spaced(len(self.trees), size)
        return replace(self, sentences=[self.sentences[n] for n in indices], trees=[self.trees[n] for n in indices])
