"""What `recipes/train_parsing.py` measures of a parser: the scores of Table 4, and F1 by step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from accelerate import PartialState
from datasets import Dataset

from ..data import TrainingData
from ..evaluation import perplexity
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.parse_sequence_vaswani import PARSE, Parse, ParseLabels, parse_of_sequence
from ..parsing.scoring import parse_corpus, right_branching, score_parser
from .records import CheckpointF1, ParsingSplit


@dataclass(frozen=True)
class GoldTrees:
    """The sentences of a treebank, as words, and their trees in brackets."""

    sentences: list[list[str]]
    trees: list[str]

    @classmethod
    def of_corpus(cls, corpus: Dataset, language: str) -> "GoldTrees":
        """The trees of a parallel corpus that `prepare_treebank` wrote."""
        pairs = corpus["translation"][:]
        sentences, sequences = ([pair[side].split() for pair in pairs] for side in (language, PARSE))
        labels = ParseLabels.from_counts(Counter(chain.from_iterable(sequences)))  # training trees may lack some
        trees = [parse_of_sequence(*each, labels).tree for each in zip(sequences, sentences, strict=True)]
        return cls(sentences, trees)

    def sample(self, size: int) -> "GoldTrees":
        """So many sentences, evenly spaced; all, if there are fewer."""
        places = _evenly(len(self.trees), size)
        return GoldTrees([self.sentences[place] for place in places], [self.trees[place] for place in places])


def score_split(directory: Path, data: TrainingData, split: str, language: str) -> tuple[ParsingSplit, list[Parse]]:
    """Parse a corpus with a saved model, freely and constrained. Collective.

    Args:
        directory: The saved model.
        data: The corpora, with their tokenizer.
        split: Which corpus.
        language: Code of the language of the words.

    Returns:
        The scores, and the constrained parses.
    """
    model, tokenizer, gold = _load(directory), data.tokenizer, GoldTrees.of_corpus(data.text[split], language)
    free = parse_corpus(model, tokenizer, gold.sentences)
    constrained = parse_corpus(model, tokenizer, gold.sentences, constrained=True)
    scores = ParsingSplit(
        perplexity=perplexity(model, tokenizer, data.encoded[split]),
        free=score_parser(gold.trees, free),
        constrained=score_parser(gold.trees, constrained),
        right_branching=score_parser(gold.trees, [right_branching(words) for words in gold.sentences]),
    )
    return scores, constrained


def f1_by_step(checkpoints: Sequence[Path], data: TrainingData, language: str, sentences: int) -> list[CheckpointF1]:
    """Greedily decoded F1 of ten of the checkpoints, on a sample of the validation set. Collective."""
    gold, found = GoldTrees.of_corpus(data.text["validation"], language).sample(sentences), []
    for directory in (checkpoints[place] for place in _evenly(len(checkpoints), 10)):
        parses = parse_corpus(_load(directory), data.tokenizer, gold.sentences, num_beams=1)
        step = int(directory.name.rpartition("-")[2])
        found.append(CheckpointF1(step, len(gold.trees), score_parser(gold.trees, parses).all_sentences.f1))
    return found


def _evenly(count: int, size: int) -> Sequence[int]:
    """So many of the first `count` numbers, evenly spaced; all, if there are fewer."""
    return [number * count // size for number in range(size)] if size < count else range(count)


def _load(directory: Path) -> VaswaniForConditionalGeneration:
    model = VaswaniForConditionalGeneration.from_pretrained(directory, trust_remote_code=False)
    return model.to(PartialState().device)
