"""Section 5.1 of the paper: sentence pairs, their cleaning, and batches of them."""

from .batching import TokenBudgetBatchSampler
from .cleaning import clean_corpus, encode_corpus
from .corpora import load_parallel_corpus, sentences


__all__ = ["TokenBudgetBatchSampler", "clean_corpus", "encode_corpus", "load_parallel_corpus", "sentences"]
