"""Section 6 of the paper: translating test sets, BLEU, perplexity, and pictures of a run."""

from .bleu import Bleu
from .perplexity import perplexity
from .plots import plot_learning_curve
from .translation import translate_corpus


__all__ = ["Bleu", "perplexity", "plot_learning_curve", "translate_corpus"]
