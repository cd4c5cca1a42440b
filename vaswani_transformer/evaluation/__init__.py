"""Section 6 of the paper: translating test sets, BLEU, perplexity, training cost, and pictures of a run."""

from .bleu import Bleu
from .flops import sustained_rate, training_cost, training_flops
from .perplexity import perplexity
from .plots import plot_learning_curve
from .translation import translate_corpus


__all__ = [
    "Bleu",
    "perplexity",
    "plot_learning_curve",
    "sustained_rate",
    "training_cost",
    "training_flops",
    "translate_corpus",
]
