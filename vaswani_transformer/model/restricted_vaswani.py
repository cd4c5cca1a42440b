"""Section 4 of the paper, "Why Self-Attention": self-attention restricted to r neighbours, which costs O(r n d)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


# Fewer queries than these a block would cost more in calls than it saves in products.
_SMALLEST_BLOCK = 32


def neighborhood_mask_function(neighborhood: int) -> Callable:
    """For transformers' mask functions: whether a key is within `neighborhood // 2` positions of the query."""

    def is_near(batch_idx: int, head_idx: int, q_idx: int, kv_idx: int) -> bool:
        return abs(q_idx - kv_idx) <= neighborhood // 2

    return is_near


def restricted_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    neighborhood: int,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Equation 1 over the keys within `neighborhood // 2` positions of each query, on its left only where the module is
    causal. The result is that of masked full attention, but time and memory grow as r n, not as n^2.

    Queries are cut into blocks, and each block attends to the one stretch of keys that its queries can reach.

    Args:
        query: `[batch, heads, target, d_k]`, the last positions of the keys'.
        key: `[batch, heads, source, d_k]`
        value: `[batch, heads, source, d_v]`
        padding_mask: `[batch, source]`, True for tokens, False for padding.

    Returns:
        The output `[batch, target, heads, d_v]`, and no weights.
    """
    batch, _, target, _ = query.shape
    if padding_mask is None:
        padding_mask = torch.ones(batch, key.shape[2], dtype=torch.bool, device=key.device)
    reach = neighborhood // 2
    before, behind = reach, 0 if module.is_causal else reach
    block = min(max(reach, _SMALLEST_BLOCK), target)
    blocks = -(-target // block)
    past = key.shape[2] - target
    first = max(past - before, 0)  # of the keys that any query can reach
    left = before - (past - first)
    right = blocks * block - target + behind
    windows = [
        F.pad(states[:, :, first:], (0, 0, left, right)).unfold(2, before + block + behind, block)
        for states in (key, value)
    ]  # [batch, heads, blocks, d_k or d_v, window]
    keys, values = (window.permute(0, 2, 1, 4, 3).flatten(0, 1) for window in windows)
    queries = F.pad(query, (0, 0, 0, blocks * block - target)).unflatten(2, (blocks, block))
    output = F.scaled_dot_product_attention(
        queries.transpose(1, 2).flatten(0, 1),  # [batch * blocks, heads, block, d_k]
        keys,
        values,
        attn_mask=_mask_of_blocks(F.pad(padding_mask[:, first:].bool(), (left, right)), block, before, behind),
        dropout_p=dropout,
        scale=scaling,
    )  # [batch * blocks, heads, block, d_v]
    output = output.unflatten(0, (batch, blocks)).transpose(2, 3).flatten(1, 2)  # [batch, blocks * block, heads, d_v]
    return output[:, :target], None


def _mask_of_blocks(exists: torch.Tensor, block: int, before: int, behind: int) -> torch.Tensor:
    """Which keys of its window each query of a block may attend to: `[batch * blocks, 1, block, window]`; `exists` says
    which keys are tokens, `[batch, keys]`."""
    window = before + block + behind
    exists = exists.unfold(1, window, block)  # [batch, blocks, window]
    queries = torch.arange(block, device=exists.device).unsqueeze(-1) + before  # in the window
    distance = torch.arange(window, device=exists.device) - queries  # [block, window]
    near = (distance >= -before) & (distance <= behind)
    # A query always sees its own place, lest padding, which sees nothing else, becomes NaN.
    allowed = (near & exists.unsqueeze(2)) | distance.eq(0)  # [batch, blocks, block, window]
    return allowed.flatten(0, 1).unsqueeze(1)
