"""Section 4 of the paper, "Why Self-Attention": self-attention restricted to r neighbours, which costs O(r n d)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig


# Name of `restricted_attention_forward` among the attention implementations.
RESTRICTED = "restricted"

# Smaller blocks of queries would save less computation than they add in calls.
_SMALLEST_BLOCK = 32


def self_attention_mask(
    create_mask: Callable,
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **cache: Any,
) -> tuple[Any, str]:
    """The mask of self-attention, and the attention implementation that takes it.

    Instead of "sdpa", `RESTRICTED` computes the neighbourhood block by block, from the padding mask alone. With a
    four-dimensional mask, a static cache, "eager" or "flex_attention", attention is full, with all but the
    neighbourhood masked.

    Args:
        create_mask: transformers' function that makes the mask.
        config: The model's configuration.
        inputs_embeds: `[batch, target, d_model]`
        attention_mask: `[batch, source]`, 1 for tokens, 0 for padding; or a mask in the implementation's own format.
        cache: For `create_mask`: `past_key_values`.

    Raises:
        ValueError: The attention implementation cannot restrict attention.
    """
    implementation, neighborhood = config._attn_implementation, config.attention_neighborhood
    if neighborhood is None:
        return create_mask(config, inputs_embeds, attention_mask, **cache), implementation
    is_static = getattr(cache.get("past_key_values"), "is_compileable", False)
    if implementation == "sdpa" and not is_static and (attention_mask is None or attention_mask.dim() == 2):
        return attention_mask, RESTRICTED
    if implementation not in ("eager", "sdpa", "flex_attention"):
        raise ValueError(
            f"attention_neighborhood: {implementation} cannot restrict attention; use sdpa or flex_attention"
        )

    def is_near(batch_idx: int, head_idx: int, q_idx: int, kv_idx: int) -> bool:
        return abs(q_idx - kv_idx) <= neighborhood // 2

    return create_mask(config, inputs_embeds, attention_mask, and_mask_function=is_near, **cache), implementation


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
    """Equation 1 over the keys within `neighborhood // 2` positions of each query.

    A causal module sees only keys to the left. The result equals masked full attention, but time and memory grow as
    r n, not as n^2: queries are cut into blocks, and each block attends only to the keys that its queries can reach.

    Args:
        module: The attention module; only its `is_causal` is read.
        query: `[batch, heads, target, d_k]`, at the last `target` of the keys' positions.
        key: `[batch, heads, source, d_k]`
        value: `[batch, heads, source, d_v]`
        padding_mask: `[batch, source]`, True for tokens, False for padding.
        neighborhood: r, the number of positions that a query sees.
        scaling: Factor of the scores.
        dropout: Probability to drop a weight.

    Returns:
        The output `[batch, target, heads, d_v]`, and None for the weights.
    """
    batch, _, target, _ = query.shape
    if padding_mask is None:
        padding_mask = torch.ones(batch, key.shape[2], dtype=torch.bool, device=key.device)
    reach = neighborhood // 2
    before, after = reach, 0 if module.is_causal else reach
    block = min(max(reach, _SMALLEST_BLOCK), target)
    blocks = -(-target // block)
    past = key.shape[2] - target
    first = max(past - before, 0)  # the first key that any query can reach
    left = before - (past - first)
    right = blocks * block - target + after
    windows = [
        F.pad(states[:, :, first:], (0, 0, left, right)).unfold(2, before + block + after, block)
        for states in (key, value)
    ]  # [batch, heads, blocks, d_k or d_v, window]
    keys, values = (window.permute(0, 2, 1, 4, 3).flatten(0, 1) for window in windows)
    queries = F.pad(query, (0, 0, 0, blocks * block - target)).unflatten(2, (blocks, block))
    output = F.scaled_dot_product_attention(
        queries.transpose(1, 2).flatten(0, 1),  # [batch * blocks, heads, block, d_k]
        keys,
        values,
        attn_mask=_block_mask(F.pad(padding_mask[:, first:].bool(), (left, right)), block, before, after),
        dropout_p=dropout,
        scale=scaling,
    )  # [batch * blocks, heads, block, d_v]
    output = output.unflatten(0, (batch, blocks)).transpose(2, 3).flatten(1, 2)  # [batch, blocks * block, heads, d_v]
    return output[:, :target], None


def _block_mask(exists: torch.Tensor, block: int, before: int, after: int) -> torch.Tensor:
    """Which keys of its window each query of a block may attend to.

    Args:
        exists: `[batch, keys]`, which keys are tokens.
        block: Queries of a block.
        before: Keys before a query that it sees.
        after: Keys after a query that it sees.

    Returns:
        `[batch * blocks, 1, block, window]`
    """
    window = before + block + after
    exists = exists.unfold(1, window, block)  # [batch, blocks, window]
    queries = torch.arange(block, device=exists.device).unsqueeze(-1) + before  # in the window
    distance = torch.arange(window, device=exists.device) - queries  # [block, window]
    near = (distance >= -before) & (distance <= after)
    # A query always sees itself: otherwise the output of padding would be NaN.
    allowed = (near & exists.unsqueeze(2)) | distance.eq(0)  # [batch, blocks, block, window]
    return allowed.flatten(0, 1).unsqueeze(1)
