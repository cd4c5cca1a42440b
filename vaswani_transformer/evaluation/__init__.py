"""Section 6 of the paper: translating test sets, BLEU, perplexity, training cost, and pictures of them."""

from .bleu import Bleu
from .flops import sustained_rate, training_cost, training_flops
from .multi_bleu import MultiBleu, multi_bleu, paper_bleu
from .newstest import newstest2014_variant, sacrebleu_files
from .perplexity import perplexity
from .plots import plot_bleu_by_source_length, plot_learning_curve, plot_sweep
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
    "plot_bleu_by_source_length",
    "plot_learning_curve",
    "plot_sweep",
    "sacrebleu_files",
    "score_translations",
    "sustained_rate",
    "training_cost",
    "training_flops",
    "translate_corpus",
]
