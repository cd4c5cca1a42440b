"""Section 4 of the paper: self-attention restricted to neighbours; then masks, and attention without padding."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


AttentionFunction = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

# Keys are padded to a multiple of this: on a CPU, PyTorch's softmax is ten times slower on an incomplete vector.
VECTOR = 16

# Smaller blocks of queries would save less computation than they add in calls.
_SMALLEST_BLOCK = 32


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
    """Equation 1 over the keys within `neighborhood // 2` positions of each query (section 4).

    A causal module sees only keys to the left. The result equals masked full attention, but time and memory grow as
    r n, not as n^2: queries are cut into blocks, and each block attends only to the keys that its queries can reach.

    The other arguments and the output are as in `eager_attention_forward`; no weights are returned.

    Args:
        module: The attention module; only its `is_causal` is read.
        query: Queries at the last `target` positions of the keys.
        padding_mask: `[batch, source]`, True for tokens, False for padding.
        neighborhood: r, the number of positions that a query sees.
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
    """Mask of the keys in its window that each query of a block may attend to: `[batch * blocks, 1, block, window]`.

    A query sees `before` positions to its left and `after` to its right, if `exists` `[batch, keys]` says that they are
    tokens.
    """
    window = before + block + after
    exists = exists.unfold(1, window, block)  # [batch, blocks, window]
    queries = torch.arange(block, device=exists.device).unsqueeze(-1) + before  # in the window
    distance = torch.arange(window, device=exists.device) - queries  # [block, window]
    near = (distance >= -before) & (distance <= after)
    # A query always sees itself: otherwise the output of padding would be NaN.
    allowed = (near & exists.unsqueeze(2)) | distance.eq(0)  # [batch, blocks, block, window]
    return allowed.flatten(0, 1).unsqueeze(1)


def bidirectional_mask(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    encoded: torch.Tensor | None = None,
    **functions: Any,
) -> Any:
    """`create_bidirectional_mask` without its synchronization with the device.

    transformers' version reads from the device whether "sdpa" needs a mask.
    """
    is_host, is_sdpa = inputs_embeds.device.type == "cpu", config._attn_implementation == "sdpa"
    if is_host or not is_sdpa or functions or attention_mask is None or attention_mask.dim() != 2:
        return create_bidirectional_mask(config, inputs_embeds, attention_mask, encoded, **functions)
    return attention_mask[:, None, None, :].to(inputs_embeds.device, torch.bool)  # [batch, 1, 1, source]


def source_mask(
    config: PreTrainedConfig, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None, encoded: torch.Tensor
) -> tuple[Any, AttentionFunction | None]:
    """The mask of encoder-decoder attention, and the attention function that takes it; None for the configured one."""
    mask = bidirectional_mask(config, inputs_embeds, attention_mask, encoded)
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        # transformers' mask for flash attention is 2-D, and would be applied to the queries (the target), too.
        return mask[:, None, None, :].bool(), ALL_ATTENTION_FUNCTIONS["sdpa"]
    return mask, None


def self_attention_mask(
    create_mask: Callable,
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache | None = None,
) -> tuple[Any, AttentionFunction | None]:
    """The mask of self-attention, and the attention function that takes it; None for the configured one.

    Instead of "sdpa", `restricted_attention_forward` attends to neighbours, from the padding mask alone. With a
    four-dimensional mask, a static cache, "eager" or "flex_attention", attention is full, with all but the
    neighbourhood masked.

    Args:
        create_mask: transformers' function that makes the mask.
        config, inputs_embeds: Arguments of `create_mask`.
        attention_mask: `[batch, source]`, 1 for tokens, 0 for padding; or a mask in the implementation's own format.
        cache: The decoder's cache of self-attention; None for the encoder.

    Raises:
        ValueError: The attention implementation cannot restrict attention.
    """
    implementation, neighborhood = config._attn_implementation, config.attention_neighborhood
    if neighborhood is None:
        return create_mask(config, inputs_embeds, attention_mask, cache), None
    is_static = getattr(cache, "is_compileable", False)
    if implementation == "sdpa" and not is_static and (attention_mask is None or attention_mask.dim() == 2):
        restricted = partial(restricted_attention_forward, neighborhood=neighborhood)
        return attention_mask, partial(attention_in_float32, restricted)
    if implementation not in ("eager", "sdpa", "flex_attention"):
        raise ValueError(
            f"attention_neighborhood: {implementation} cannot restrict attention; use sdpa or flex_attention"
        )

    def is_near(batch_idx: int, head_idx: int, q_idx: int, kv_idx: int) -> bool:
        return abs(q_idx - kv_idx) <= neighborhood // 2

    return create_mask(config, inputs_embeds, attention_mask, cache, and_mask_function=is_near), None


class SourceTokens:
    """The tokens of a batch of sources, packed into one row so that padding is not computed.

    Args:
        mask: `[sentences, source]`, 1 for tokens, 0 for padding.

    `length` is the length of a source, padded to a multiple of `VECTOR`.
    """

    def __init__(self, mask: torch.Tensor) -> None:
        self.mask = F.pad(mask.bool(), (0, -mask.shape[1] % VECTOR))  # [sentences, length]
        self.indices = self.mask.flatten().nonzero().squeeze(-1)  # [tokens]

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """Pack the tokens' states of `[sentences, source, width]` into one row `[1, tokens, width]`."""
        padded = F.pad(states, (0, 0, 0, self.mask.shape[1] - states.shape[1]))
        return padded.flatten(0, 1).index_select(0, self.indices).unsqueeze(0)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Undo `pack`: `[sentences, length, ...]` from `[1, tokens, ...]`, with zeros at padding."""
        padded = packed.new_zeros(self.mask.numel(), *packed.shape[2:])
        return padded.index_copy_(0, self.indices, packed[0]).unflatten(0, self.mask.shape)


def unpadded_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    source: SourceTokens,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Equation 1 within each sentence of a batch packed into one row, `[1, heads, tokens, d_k]`.

    `source`, the batch's `SourceTokens`, replaces a mask. The output is `[1, tokens, heads, d_v]`, without weights.
    """
    query, key, value = (source.unpack(states.transpose(1, 2)).transpose(1, 2) for states in (query, key, value))
    output = F.scaled_dot_product_attention(query, key, value, source.mask[:, None, None], scale=scaling)
    attended = source.pack(output.transpose(1, 2).flatten(2))  # [1, tokens, heads * d_v]
    return attended.unflatten(-1, (query.shape[1], -1)), None


def attention_in_float32(
    attention: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Call `attention` in float32 instead of bfloat16 on a CPU, whose fused kernel has a slow bfloat16 gradient.

    On sentences of 14 tokens, that gradient takes six times as long as in float32, half of a training step.
    """
    is_slow = query.device.type == "cpu" and query.dtype == torch.bfloat16 and torch.is_grad_enabled()
    if not is_slow or (attention_mask is not None and attention_mask.is_floating_point()):
        return attention(module, query, key, value, attention_mask, **kwargs)
    with torch.autocast("cpu", enabled=False):
        output, weights = attention(module, query.float(), key.float(), value.float(), attention_mask, **kwargs)
    return output.to(query.dtype), weights
