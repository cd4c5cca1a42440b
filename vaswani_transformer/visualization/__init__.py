"""The paper's appendix: attention as lines between words; and pictures of its entropy, positions, learning rate."""

from .attention import AttentionWeights, merge_words, read_attention
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
    "learning_rate_view",
    "merge_words",
    "positions_view",
    "read_attention",
    "require_numbers",
    "require_picture",
]
