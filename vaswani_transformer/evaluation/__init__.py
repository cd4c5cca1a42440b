"""Section 6 of the paper: translating test sets, BLEU and perplexity."""

from .bleu import Bleu
from .multi_bleu import MultiBleu, multi_bleu, paper_bleu
from .newstest import newstest2014_variant, sacrebleu_files
from .perplexity import perplexity
from .scores import bleu_by_source_length, chrf, paired_bootstrap, score_translations
from .translation import translate_corpus


__all__ = [
    "Bleu",
    "MultiBleu",
    "bleu_by_source_length",
    "chrf",
    "multi_bleu",
    "newstest2014_variant",
    "paired_bootstrap",
    "paper_bleu",
    "perplexity",
    "sacrebleu_files",
    "score_translations",
    "translate_corpus",
]
