"""Section 6 of the paper: test sets and metrics, BLEU and perplexity."""

from ..io.lazy_names import lazy_names


__all__, __getattr__ = lazy_names(
    __name__,
    {
        "Bleu": "bleu",
        "MultiBleu": "moses_bleu",
        "Perplexity": "perplexity",
        "Scores": "scores",
        "TestSet": "test_sets",
        "multi_bleu": "moses_bleu",
        "newstest2014_variant": "test_sets",
        "paired_bootstrap": "scores",
        "paper_bleu": "moses_bleu",
        "read_test_set": "test_sets",
        "sacrebleu_test_set": "test_sets",
        "score_translations": "scores",
    },
)
