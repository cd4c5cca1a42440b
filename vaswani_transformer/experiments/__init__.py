"""The paper's Tables 2 and 3: run records, costs, comparison with the paper, plots and reports."""

from .costs import TrainingCost, sustained_rate, training_cost
from .plots import plot_bleu_by_source_length, plot_learning_curve, plot_sweep
from .records import Provenance, RunRecord, ScoreRecord


__all__ = [
    "Provenance",
    "RunRecord",
    "ScoreRecord",
    "TrainingCost",
    "plot_bleu_by_source_length",
    "plot_learning_curve",
    "plot_sweep",
    "sustained_rate",
    "training_cost",
]
