"""Attention as in the paper's appendix, and other pictures of the model; a page to explore one translation."""

from .attention import AttentionWeights, merge_words, read_attention
from .explorer import ExplorerView, explore
from .figures import (
    Picture,
    attention_entropy,
    attention_view,
    draw_attention,
    entropy_view,
    learning_rate_view,
    positions_view,
)


__all__ = [
    "AttentionWeights",
    "ExplorerView",
    "Picture",
    "attention_entropy",
    "attention_view",
    "draw_attention",
    "entropy_view",
    "explore",
    "learning_rate_view",
    "merge_words",
    "positions_view",
    "read_attention",
]
