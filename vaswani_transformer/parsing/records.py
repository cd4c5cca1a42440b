"""Results of the training of a parser: `ParsingRecord` is `all_results.json`."""

from dataclasses import dataclass, field

from ..evaluation.perplexity import Perplexity
from ..runs.records import CorpusScores, Provenance, TrainingResults
from .scoring import ParserScores


@dataclass(frozen=True, kw_only=True)
class ParsingSplit(CorpusScores):
    """The scores of a parsing model on one treebank.

    Attributes:
        perplexity: The perplexity per gold label.
        free: Scores of the search among all sequences, repaired.
        constrained: Scores of the search among well-formed parses.
        right_branching: Scores of the trivial baseline.
    """

    perplexity: Perplexity
    free: ParserScores
    constrained: ParserScores
    right_branching: ParserScores

    @property
    def metrics(self) -> dict[str, float]:
        return {"f1": self.constrained.all_sentences.f1, "perplexity": self.perplexity.perplexity}


@dataclass(frozen=True)
class CheckpointF1:
    """F1 of a checkpoint, greedily decoded, on some sentences of the validation set; a point of a learning curve."""

    step: int
    sentences: int
    f1: float


@dataclass(frozen=True, kw_only=True)
class ComparedParser:
    """Another parser, scored on the test set, or on the validation set if there is no test set.

    Attributes:
        name: Description of the parser.
        trained_on: Its training trees.
        preparation: Commands that were run before `run.command`.
        run: The training, or the benchmark.
        scores: Scores, of the constrained search for a model of this package.
    """

    name: str
    trained_on: str
    preparation: list[str] = field(default_factory=list)
    run: Provenance
    scores: ParserScores


@dataclass(frozen=True, kw_only=True)
class ParsingRecord(TrainingResults):
    """The `all_results.json` of `recipes/train_parsing.py`; other fields as in `RunRecord`.

    Attributes:
        curve: F1 of the remaining checkpoints.
        others: Parsers to compare with, in a published record.
    """

    validation: ParsingSplit | None = None
    test: ParsingSplit | None = None
    test_last_checkpoint: ParsingSplit | None = None
    curve: list[CheckpointF1] | None = None
    others: list[ComparedParser] | None = None
