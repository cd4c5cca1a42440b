"""The paper's Tables 2 and 3: its numbers, what a training cost, how ours compare, and plots."""

from .costs import sustained_rate, training_cost
from .plots import plot_bleu_by_source_length, plot_learning_curve, plot_sweep


__all__ = [
    "plot_bleu_by_source_length",
    "plot_learning_curve",
    "plot_sweep",
    "sustained_rate",
    "training_cost",
]
