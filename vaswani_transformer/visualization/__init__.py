"""Attention as in the paper's appendix, and other pictures of the model; a page to explore one translation."""

from .attention import AttentionWeights, merge_words, read_attention
from .explorer import explorer_page, write_explorer
from .figures import (
    Picture,
    attention_entropy,
    attention_view,
    draw_attention,
    entropy_view,
    learning_rate_view,
    positions_view,
    require_numbers,
    require_picture,
)


__all__ = [
    "AttentionWeights",
    "Picture",
    "attention_entropy",
    "attention_view",
    "draw_attention",
    "entropy_view",
    "explorer_page",
    "learning_rate_view",
    "merge_words",
    "positions_view",
    "read_attention",
    "require_numbers",
    "require_picture",
    "write_explorer",
]
