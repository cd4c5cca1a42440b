"""Scores of parsers (6.3, Table 4), and the record of a training: `ParsingRecord` is `all_results.json`."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding.translation import search_on_all_processes
from ..evaluation.perplexity import Perplexity
from ..model.parse_sequence_vaswani import Parse
from ..model.parsing_vaswani import parse_in_batches
from ..runs.records import TrainingResults
from ..system.typed_json import Record
from .evalb import ParsingScore, score_parse


# Definitions of the two F1 in every report.
F1_DEFINITIONS = """\
F1 counts all sentences: the gold tags decide which words (punctuation) are deleted. EVALB's F1 is the program's: each \
tree's own tags decide, and sentences whose numbers of words then differ are left out. Both follow COLLINS.prm. \
"Unseen" counts the gold trees that do not occur, with their words, in the training data."""


@dataclass(frozen=True, kw_only=True)
class ParserScores(Record):
    """F1 of a parser's trees, also written by `recipes/parse.py`.

    Attributes:
        sentences: Number of sentences.
        repairs: Number of changes that made trees of the sequences.
        repaired: Number of sentences with a change.
        evalb: Scores by EVALB: a sentence with a wrong tag for punctuation is an error, and does not count.
        all_sentences: Scores with words deleted by the gold tags, so that every sentence counts.
        up_to_40_words: As `all_sentences`, for sentences with at most 40 words.
        unseen: As `all_sentences`, for gold trees that are not in the training data; None if not measured.
        unseen_evalb: As `evalb`, for the same trees.
    """

    sentences: int
    repairs: int = 0
    repaired: int = 0
    evalb: ParsingScore
    all_sentences: ParsingScore
    up_to_40_words: ParsingScore
    unseen: ParsingScore | None = None
    unseen_evalb: ParsingScore | None = None


@dataclass(frozen=True, kw_only=True)
class ParsingSplit:
    """The scores of a parsing model on one treebank.

    Attributes:
        perplexity: The perplexity per gold label.
        free: The search among all sequences, repaired.
        constrained: The search among well-formed parses.
    """

    perplexity: Perplexity
    free: ParserScores
    constrained: ParserScores

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers for trackers."""
        return {"f1": self.constrained.all_sentences.f1, "perplexity": self.perplexity.perplexity}


@dataclass(frozen=True, kw_only=True)
class ParsingRecord(TrainingResults):
    """The `all_results.json` of `recipes/train_parsing.py`; the fields are as in `RunRecord`."""

    validation: ParsingSplit | None = None
    test: ParsingSplit | None = None
    test_last_checkpoint: ParsingSplit | None = None


def score_parser(gold: Sequence[str], parses: Sequence[Parse], seen: Container[str] | None = None) -> ParserScores:
    """Compare parses with gold trees in brackets.

    `seen` are trees of the training data, written like the gold trees; None if they are unknown.
    """
    pairs = [(tree, parse.tree) for tree, parse in zip(gold, parses, strict=True)]
    by_program = [score_parse(*pair) for pair in pairs]
    by_gold_tags = [score_parse(*pair, deletes_by_gold=True) for pair in pairs]
    unseen: list[ParsingScore | None] = [None, None]
    if seen is not None:
        is_unseen = [tree not in seen for tree in gold]
        unseen = [ParsingScore.from_sentences(compress(scores, is_unseen)) for scores in (by_gold_tags, by_program)]
    return ParserScores(
        sentences=len(gold),
        repairs=sum(parse.repairs for parse in parses),
        repaired=sum(parse.repairs > 0 for parse in parses),
        evalb=ParsingScore.from_sentences(by_program),
        all_sentences=ParsingScore.from_sentences(by_gold_tags),
        up_to_40_words=ParsingScore.from_sentences([score for score in by_gold_tags if score.length <= 40]),
        unseen=unseen[0],
        unseen_evalb=unseen[1],
    )


def parse_corpus(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sequence[str]], **options: Any
) -> list[Parse]:
    """Parse sentences given as words, by `parse_in_batches`, whose options it takes; the result keeps their order.

    Collective: the processes share the sentences, and all return the same result.
    """
    model.eval()
    search = partial(parse_in_batches, model, tokenizer, **options)
    return [parses[0] for parses in search_on_all_processes(sentences, search, "Parsing")]
