"""Section 6 of the paper: translation of test sets, BLEU and perplexity."""

from .bleu import Bleu
from .multi_bleu import MultiBleu, multi_bleu, paper_bleu
from .perplexity import Perplexity, perplexity
from .scores import (
    BleuScore,
    LengthGroup,
    PairedComparison,
    Scores,
    bleu_by_source_length,
    paired_bootstrap,
    sacrebleu_score,
    score_translations,
)
from .test_sets import TestSet, newstest2014_variant, read_test_set, sacrebleu_test_set
from .translation import translate_corpus


__all__ = [
    "Bleu",
    "BleuScore",
    "LengthGroup",
    "MultiBleu",
    "PairedComparison",
    "Perplexity",
    "Scores",
    "TestSet",
    "bleu_by_source_length",
    "multi_bleu",
    "newstest2014_variant",
    "paired_bootstrap",
    "paper_bleu",
    "perplexity",
    "read_test_set",
    "sacrebleu_score",
    "sacrebleu_test_set",
    "score_translations",
    "translate_corpus",
]
