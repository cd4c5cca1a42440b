"""What `recipes/train_parsing.py` measures of a parser: the scores of Table 4, and F1 by step."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from ..data.text_files import read_lines
from ..data.training_data import TrainingData
from ..evaluation.perplexity import perplexity
from ..model.parse_sequence_vaswani import PARSE, Parse, ParseLabels, parse_of_sequence
from ..model.parsing_vaswani import VaswaniForConstituencyParsing
from .records import CheckpointF1, ParsingSplit
from .scoring import parse_corpus, right_branching, score_parser


@dataclass(frozen=True)
class GoldTrees:
    """The sentences of a treebank, as words; their trees in brackets; which trees stand in the training data, too."""

    sentences: list[list[str]]
    trees: list[str]
    seen: Set[str] = frozenset()

    @classmethod
    def load(cls, file: str | Path, language: str, train: Iterable[str | Path] = ()) -> "GoldTrees":
        """The trees of a file that `prepare_treebank` wrote, always with their tags: EVALB deletes words by them.

        In `train`, other files that it wrote, equal trees are sought.
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
        places = _evenly(len(self.trees), size)
        return GoldTrees([self.sentences[place] for place in places], [self.trees[place] for place in places])


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
    steps, found = [*checkpoints], []
    for step in (steps[place] for place in _evenly(len(steps), 10)):
        parses = parse_corpus(_load(checkpoints[step]), tokenizer, gold.sentences, num_beams=1)
        found.append(CheckpointF1(step, len(gold.trees), score_parser(gold.trees, parses).all_sentences.f1))
    return found


def _evenly(count: int, size: int) -> Sequence[int]:
    """`size` of the first `count` numbers, evenly spaced; all, if there are fewer."""
    return [number * count // size for number in range(size)] if size < count else range(count)


def _load(directory: Path) -> VaswaniForConstituencyParsing:
    model = VaswaniForConstituencyParsing.from_pretrained(directory, trust_remote_code=False)
    return model.to(PartialState().device)
