"""Section 6 of the paper: test sets and metrics, BLEU and perplexity."""

from .multi_bleu import MultiBleu, multi_bleu
from .scores import sacrebleu_score, score_translations


__all__ = ["MultiBleu", "multi_bleu", "sacrebleu_score", "score_translations"]
