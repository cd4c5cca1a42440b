"""Attention as in the paper's appendix, and other pictures of the model; a page to explore one translation."""

from ..io.lazy_names import lazy_names


__all__, __getattr__ = lazy_names(
    __name__,
    {
        "AttentionWeights": "attention",
        "ExplorerView": "explorer",
        "Picture": "figures",
        "attention_entropy": "figures",
        "attention_view": "figures",
        "draw_attention": "figures",
        "entropy_view": "figures",
        "explore": "explorer",
        "explorer_page": "explorer",
        "learning_rate_view": "figures",
        "merge_words": "attention",
        "positions_view": "figures",
        "read_attention": "attention",
        "write_explorer": "explorer",
    },
)
