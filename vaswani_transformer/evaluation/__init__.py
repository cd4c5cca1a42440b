"""Section 6 of the paper: test sets and metrics, BLEU and perplexity."""

from ..io.lazy_names import lazy_names
from .multi_bleu import MultiBleu, multi_bleu, paper_bleu  # at once: a function and its module have one name


_lazy, __getattr__ = lazy_names(
    __name__,
    {
        "Bleu": "bleu",
        "BleuScore": "scores",
        "LengthGroup": "scores",
        "PairedComparison": "scores",
        "Perplexity": "perplexity",
        "Scores": "scores",
        "TestSet": "test_sets",
        "bleu_by_source_length": "scores",
        "newstest2014_variant": "test_sets",
        "paired_bootstrap": "scores",
        "read_test_set": "test_sets",
        "sacrebleu_score": "scores",
        "sacrebleu_test_set": "test_sets",
        "score_translations": "scores",
    },
)

__all__ = ["MultiBleu", "multi_bleu", "paper_bleu", *_lazy]
