"""Section 6 of the paper: translation of test sets, BLEU and perplexity."""

from .bleu import Bleu
from .multi_bleu import MultiBleu, multi_bleu, paper_bleu
from .newstest import newstest2014_variant, sacrebleu_files
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
from .translation import translate_corpus


__all__ = [
    "Bleu",
    "BleuScore",
    "LengthGroup",
    "MultiBleu",
    "PairedComparison",
    "Perplexity",
    "Scores",
    "bleu_by_source_length",
    "multi_bleu",
    "newstest2014_variant",
    "paired_bootstrap",
    "paper_bleu",
    "perplexity",
    "sacrebleu_files",
    "sacrebleu_score",
    "score_translations",
    "translate_corpus",
]
