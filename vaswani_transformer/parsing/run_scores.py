"""What `recipes/train_parsing.py` measures of a parser: the scores of Table 4, and F1 by step."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from ..data.corpora import spread
from ..data.prepared_directory import TrainingData
from ..data.text_files import read_lines
from ..evaluation.perplexity import perplexity
from ..model.parse_sequence_vaswani import PARSE, Parse, ParseLabels, parse_of_sequence
from ..model.parsing_vaswani import VaswaniForConstituencyParsing
from .records import CheckpointF1, ParsingSplit
from .scoring import parse_corpus, right_branching, score_parser


@dataclass(frozen=True)
class GoldTrees:
    """Sentences of a treebank as words, their trees in brackets, and which of these trees are in the training data."""

    sentences: list[list[str]]
    trees: list[str]
    seen: Set[str] = frozenset()

    @classmethod
    def load(cls, file: str | Path, language: str, train: Iterable[str | Path] = ()) -> "GoldTrees":
        """The trees of a file that `prepare_treebank` wrote, with the tags that EVALB needs to delete punctuation.

        Args:
            file: The file.
            language: Code of the language of the words.
            train: Files of the training data, to tell which trees are in them, too.
        """
        lines = [*read_lines(Path(file))]
        seen = {*lines}.intersection(line for each in train for line in read_lines(Path(each)))
        rows = [json.loads(line) for line in lines]
        pairs = [row["translation"] for row in rows]
        sentences, sequences = ([pair[side].split() for pair in pairs] for side in (language, PARSE))
        labels = ParseLabels.from_counts(Counter(chain.from_iterable(sequences)))  # training trees may lack some
        trees = [
            row.get("tree") or parse_of_sequence(sequence, words, labels).tree
            for row, sequence, words in zip(rows, sequences, sentences, strict=True)
        ]
        return cls(sentences, trees, {tree for line, tree in zip(lines, trees, strict=True) if line in seen})

    def sample(self, size: int) -> "GoldTrees":
        """`size` sentences, evenly spaced; all, if there are fewer."""
        places = spread(len(self.trees), size)
        return replace(self, sentences=[self.sentences[n] for n in places], trees=[self.trees[n] for n in places])


def score_split(directory: Path, data: TrainingData, split: str, gold: GoldTrees) -> tuple[ParsingSplit, list[Parse]]:
    """Parse a corpus with a saved model, freely and constrained. Collective.

    Args:
        directory: The saved model.
        data: The corpora, with their tokenizer.
        split: Which corpus.
        gold: Its trees.

    Returns:
        The scores, and the constrained parses.
    """
    model, tokenizer = _load(directory), data.tokenizer
    free = parse_corpus(model, tokenizer, gold.sentences)
    constrained = parse_corpus(model, tokenizer, gold.sentences, constrained=True)
    scores = ParsingSplit(
        perplexity=perplexity(model, tokenizer, data.encoded[split]),
        free=score_parser(gold.trees, free, gold.seen),
        constrained=score_parser(gold.trees, constrained, gold.seen),
        right_branching=score_parser(gold.trees, [right_branching(words) for words in gold.sentences], gold.seen),
    )
    return scores, constrained


def f1_by_step(
    checkpoints: Mapping[int, Path], tokenizer: PreTrainedTokenizerBase, gold: GoldTrees
) -> list[CheckpointF1]:
    """Greedily decoded F1 of ten of the checkpoints, given by step. Collective."""
    steps, curve = [*checkpoints], []
    for step in (steps[place] for place in spread(len(steps), 10)):
        parses = parse_corpus(_load(checkpoints[step]), tokenizer, gold.sentences, num_beams=1)
        curve.append(CheckpointF1(step, len(gold.trees), score_parser(gold.trees, parses).all_sentences.f1))
    return curve


def _load(directory: Path) -> VaswaniForConstituencyParsing:
    model = VaswaniForConstituencyParsing.from_pretrained(directory, trust_remote_code=False)
    return model.to(PartialState().device)
