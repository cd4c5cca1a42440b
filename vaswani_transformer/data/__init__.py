"""Section 5.1 of the paper: sentence pairs, their cleaning, and batches of them."""

from .batching import TokenBudgetBatchSampler
from .cleaning import clean_corpus, encode_corpus
from .corpora import load_parallel_corpus, sentences
from .preparation import load_corpora, load_prepared, prepare_corpus
from .preparation_arguments import PreparationArguments
from .training_data import TrainingData


__all__ = [
    "PreparationArguments",
    "TokenBudgetBatchSampler",
    "TrainingData",
    "clean_corpus",
    "encode_corpus",
    "load_corpora",
    "load_parallel_corpus",
    "load_prepared",
    "prepare_corpus",
    "sentences",
]
