"""Sections 3.4 and 3.5 of the paper: embeddings and positional encoding."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .configuration_vaswani import VaswaniConfig


class VaswaniEmbedding(nn.Embedding):
    """Embeddings times sqrt(d_model) (3.4). Padding, which is also the decoder's start token, embeds as zero."""

    def __init__(self, config: VaswaniConfig, vocab_size: int) -> None:
        super().__init__(vocab_size, config.d_model, config.pad_token_id)
        self.config = config
        self.embed_scale = math.sqrt(config.d_model)  # PEFT's adapters read an attribute of this name

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return zero_padding(self.config, input_ids, super().forward(input_ids) * self.embed_scale)


def zero_padding(config: VaswaniConfig, input_ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    """Set padding in `embedded` `[batch, length, d_model]` to zero, if `zero_padding_embedding` is set."""
    if not config.zero_padding_embedding:
        return embedded
    # The padding row of the matrix does not stay zero, because the softmax shares and trains it.
    return embedded.masked_fill(input_ids.eq(config.pad_token_id).unsqueeze(-1), 0.0)


def sinusoidal_positions(
    positions: torch.Tensor, d_model: int, layout: str = "sinusoidal", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Positional encoding (3.5), computed on demand for any length and never saved.

    Args:
        positions: Integers of any shape.
        d_model: Even width of the encoding.
        layout: "sinusoidal" is the paper's formula, `PE(pos, 2i) = sin(pos / 10000^(2i/d_model))`,
            `PE(pos, 2i+1) = cos(...)`. "sinusoidal_halves" is the authors' code: sines in the first half, cosines in
            the second, timescales in a geometric progression from 1 to 10000, both included. "sinusoidal_marian" has
            the same halves with the timescales of the paper's formula.
        dtype: Type of the result; angles are computed in float64, since float32 errs by 5e-4 at position 10,000.

    Returns:
        `[*positions.shape, d_model]`
    """
    # Apple's GPUs have no float64.
    precision = torch.float32 if positions.device.type == "mps" else torch.float64
    half = d_model // 2
    exponent = torch.arange(half, dtype=precision, device=positions.device)
    denominator = max(half - 1, 1) if layout == "sinusoidal_halves" else half
    exponent = exponent / denominator  # [d_model / 2], from 0 to (almost) 1
    angles = positions.unsqueeze(-1).to(precision) * torch.exp(-math.log(10000.0) * exponent)
    if layout == "sinusoidal":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(dtype)


class VaswaniPositionalEncoding(nn.Module):
    """Positional encoding (3.5): sinusoids, or the learned table of Table 3, row E."""

    def __init__(self, config: VaswaniConfig) -> None:
        super().__init__()
        self.config = config
        if config.max_positions is not None:
            self.table = nn.Embedding(config.max_position_embeddings, config.d_model)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype, length: int) -> torch.Tensor:
        """Encode integer `positions` as `[*positions.shape, d_model]`; a learned table must have `length` rows."""
        config, most = self.config, self.config.max_positions
        if most is None:
            positions = positions + config.position_offset
            return sinusoidal_positions(positions, config.d_model, config.position_encoding, dtype)
        if length > most:
            raise ValueError(
                f"a sequence of {length} tokens exceeds the learned position table of "
                f"max_position_embeddings = {most}; truncate it to that length"
            )
        return self.table(positions)


def positions_from_mask(
    attention_mask: torch.Tensor | None, length: int, past: int | torch.Tensor, device: torch.device
) -> torch.Tensor:
    """Positions of the last `length` tokens, counted from the first token that is not padding.

    Args:
        attention_mask: `[batch, past + length]`, 1 for tokens, 0 for padding. With None, or a mask that is already
            four-dimensional, there is no padding on the left.
        length: Number of tokens.
        past: Number of tokens in the cache.
        device: Device of the result.

    Returns:
        `[batch, length]`, or `[1, length]` without a mask.
    """
    if attention_mask is None or attention_mask.dim() != 2:
        return (torch.arange(length, device=device) + past).unsqueeze(0)
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]


class VaswaniEmbeddingMixin:
    """Input of the first layer of encoder and decoder: embedding plus position."""

    config: VaswaniConfig
    training: bool
    input_prefix = ""  # of its argument names in the whole model's `forward`
    embed_tokens: Any  # adapters may replace it by another module
    embed_positions: VaswaniPositionalEncoding

    def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None = None) -> torch.Tensor:
        """Embed `input_ids` `[batch, length]` as `[batch, length, d_model]`, or return `inputs_embeds` unchanged.

        Raises:
            ValueError: Neither or both were given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"give either {self.input_prefix}input_ids or {self.input_prefix}inputs_embeds")
        if input_ids is None:
            return inputs_embeds
        embedded = self.embed_tokens(input_ids)
        if isinstance(self.embed_tokens, VaswaniEmbedding):
            return embedded
        return zero_padding(self.config, input_ids, embedded)  # an adapter does not set padding to zero

    def add_positions(
        self, embedded: torch.Tensor, attention_mask: torch.Tensor | None, past: int | torch.Tensor
    ) -> torch.Tensor:
        """Input of the first layer (3.5, 5.4): `embedded` `[batch, length, d_model]` plus positions, with dropout."""
        length = embedded.shape[1]
        positions = positions_from_mask(attention_mask, length, past, embedded.device)
        longest = length if isinstance(past, torch.Tensor) else past + length
        hidden_states = embedded + self.embed_positions(positions, embedded.dtype, longest)
        return F.dropout(hidden_states, p=self.config.dropout, training=self.training)
