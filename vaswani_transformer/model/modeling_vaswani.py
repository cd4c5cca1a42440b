"""Section 3 of the paper, in its order, and the models that transformers knows.

3.1 residual and layers, 3.2 attention, 3.3 feed-forward, 3.4 embeddings, 3.5 positions; then the two stacks, the model
of Figure 1, and the model with the softmax. Dropout (5.4) follows. Restricted attention (4) is in
`attention_vaswani.py`.
"""

import copy
import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vaswani import (
    AttentionFunction,
    SourceTokens,
    attention_in_float32,
    bidirectional_mask,
    self_attention_mask,
    source_mask,
    unpadded_attention_forward,
)
from .configuration_vaswani import VaswaniConfig
from .generation_vaswani import VaswaniGenerationMixin, has_search_options, paper_generation_config
from .keywords_vaswani import CACHE, as_encoder_outputs, strict_keywords
from .search_options_vaswani import has_filled_length
from .step_decoder_vaswani import has_hooks


class VaswaniResidual(nn.Module):
    """`LayerNorm(x + Dropout(Sublayer(x)))` (3.1 and 5.4): the post-norm residual around every sub-layer."""

    def __init__(self, config: VaswaniConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor, sublayer_output: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden_states + drop_out(sublayer_output, self.dropout, self.training))


class VaswaniEncoderLayer(GradientCheckpointingLayer):
    """One of the N encoder layers (3.1): self-attention, feed-forward."""

    def __init__(self, config: VaswaniConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = VaswaniAttention(config, layer_idx)
        self.self_attn_residual = VaswaniResidual(config)
        self.feed_forward = VaswaniFeedForward(config, config.d_ff)
        self.feed_forward_residual = VaswaniResidual(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states, attention_mask, **kwargs)
        hidden_states = self.self_attn_residual(hidden_states, attended)
        return self.feed_forward_residual(hidden_states, self.feed_forward(hidden_states))


class VaswaniDecoderLayer(GradientCheckpointingLayer):
    """One of the N decoder layers (3.1): masked self-attention, encoder-decoder attention, feed-forward."""

    def __init__(self, config: VaswaniConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = VaswaniAttention(config, layer_idx, is_causal=True)
        self.self_attn_residual = VaswaniResidual(config)
        self.encoder_attn = VaswaniAttention(config, layer_idx, is_cross=True)
        self.encoder_attn_residual = VaswaniResidual(config)
        self.feed_forward = VaswaniFeedForward(config, config.decoder_d_ff)
        self.feed_forward_residual = VaswaniResidual(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        attention: AttentionFunction | None = None,
        cross_attention: AttentionFunction | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states, attention_mask, None, cache, attention, **kwargs)
        hidden_states = self.self_attn_residual(hidden_states, attended)
        if encoder_hidden_states is not None:
            source = (encoder_attention_mask, encoder_hidden_states, cache, cross_attention)
            attended, _ = self.encoder_attn(hidden_states, *source, **kwargs)
            hidden_states = self.encoder_attn_residual(hidden_states, attended)
        return self.feed_forward_residual(hidden_states, self.feed_forward(hidden_states))


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention, equation 1 (3.2.1): `softmax(Q K^T / sqrt(d_k)) V`.

    Args:
        module: The attention module; its `training` flag enables dropout.
        query: `[batch, heads, target, d_k]`
        key: `[batch, heads, source, d_k]`
        value: `[batch, heads, source, d_v]`
        attention_mask: Added to the scores `[batch, heads, target, source]`: 0 where attention is allowed, the dtype's
            minimum elsewhere.
        scaling: `1 / sqrt(d_k)`, the factor of the scores.
        dropout: Probability of setting a weight to zero.

    Returns:
        The output `[batch, target, heads, d_v]` and the weights `[batch, heads, target, source]`.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # [batch, heads, target, source]
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1)
    if attention_mask is not None:  # a fully masked row has zero weights, as in the other implementations
        is_masked = attention_mask <= torch.finfo(attention_mask.dtype).min
        weights = weights.masked_fill(is_masked.all(-1, keepdim=True), 0.0)
    weights = drop_out(weights, dropout, module.training)
    output = torch.matmul(weights, value)  # [batch, heads, target, d_v]
    return output.transpose(1, 2).contiguous(), weights


class VaswaniAttention(nn.Module):
    """Multi-head attention (3.2.2): `Concat(head_1, ..., head_h) W^O`.

    Each head has its own projections; d_k and d_v need not be d_model / h.
    Used in all three places of 3.2.3: self-attention of the encoder, masked self-attention of the decoder
    (`is_causal`), and encoder-decoder attention (`is_cross`).
    """

    def __init__(
        self, config: VaswaniConfig, layer_idx: int | None = None, is_causal: bool = False, is_cross: bool = False
    ) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.is_causal, self.is_cross = is_causal, is_cross
        self.num_heads, self.d_k, self.d_v = config.num_heads, config.d_k, config.d_v
        self.scaling = config.d_k**-0.5
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.d_model, config.num_heads * config.d_k, bias=bias)  # W^Q of all heads
        self.k_proj = nn.Linear(config.d_model, config.num_heads * config.d_k, bias=bias)  # W^K
        self.v_proj = nn.Linear(config.d_model, config.num_heads * config.d_v, bias=bias)  # W^V
        self.out_proj = nn.Linear(config.num_heads * config.d_v, config.d_model, bias=bias)  # W^O

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        cache: Cache | None = None,
        attention: AttentionFunction | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `hidden_states` `[batch, target, d_model]`.

        Args:
            hidden_states: Input of the queries and, in self-attention, of the keys and values.
            attention_mask: In the format of the attention function.
            encoder_hidden_states: `[batch, source, d_model]`, for encoder-decoder attention.
            cache: Cache of keys and values.
            attention: The attention function, by default the one that the configuration names.

        Returns:
            `[batch, target, d_model]`, and the weights if the attention function returns them.
        """
        query = self.split_heads(self.q_proj(hidden_states), self.d_k)  # [batch, heads, target, d_k]
        key, value = self.keys_and_values(hidden_states, encoder_hidden_states, cache)
        if attention is None:
            implementation = self.config._attn_implementation
            attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
            if implementation == "sdpa":
                attention = partial(attention_in_float32, attention)
        dropout = self.config.attention_dropout if self.training else 0.0
        output, weights = attention(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )  # [batch, target, heads, d_v]
        return self.out_proj(output.flatten(2)), weights

    def split_heads(self, projected: torch.Tensor, width: int) -> torch.Tensor:
        return projected.unflatten(-1, (self.num_heads, width)).transpose(1, 2)  # [batch, heads, length, width]

    def keys_and_values(
        self, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor | None, both: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys `[batch, heads, source, d_k]` and values `[batch, heads, source, d_v]`, through the cache if given."""
        cache = both
        if isinstance(both, EncoderDecoderCache):
            if self.is_cross and both.is_updated.get(self.layer_idx):
                layer = both.cross_attention_cache.layers[self.layer_idx]
                return layer.keys, layer.values
            cache = both.cross_attention_cache if self.is_cross else both.self_attention_cache
        elif self.is_cross:
            cache = None  # a cache that is not an EncoderDecoderCache holds only self-attention keys and values
        states = encoder_hidden_states if self.is_cross else hidden_states
        key = self.split_heads(self.k_proj(states), self.d_k)
        value = self.split_heads(self.v_proj(states), self.d_v)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
            if self.is_cross:
                both.is_updated[self.layer_idx] = True
        return key, value


class VaswaniFeedForward(nn.Module):
    """Position-wise feed-forward network, equation 2 (3.3): `max(0, x W_1 + b_1) W_2 + b_2` if `activation="relu"`."""

    def __init__(self, config: VaswaniConfig, d_ff: int) -> None:
        super().__init__()
        self.activation_dropout = config.activation_dropout
        self.activation = ACT2FN[config.activation]
        self.fc1 = nn.Linear(config.d_model, d_ff)
        self.fc2 = nn.Linear(d_ff, config.d_model)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = self.activation(self.fc1(hidden_states))  # [batch, length, d_ff]
        inner = drop_out(inner, self.activation_dropout, self.training)
        return self.fc2(inner)  # [batch, length, d_model]


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
        layout: A sinusoidal `position_encoding`. "sinusoidal" is the paper's formula,
            `PE(pos, 2i) = sin(pos / 10000^(2i/d_model))`, `PE(pos, 2i+1) = cos(...)`. "sinusoidal_halves" is the
            authors' code: sines in the first half, cosines in the second, timescales in a geometric progression from 1
            to 10000, both included. "sinusoidal_marian" has the same halves with the timescales of the paper's formula.
        dtype: Type of the result; angles are computed in float64, since float32 errs by 5e-4 at position 10,000.

    Returns:
        `[*positions.shape, d_model]`
    """
    # Apple's GPUs have no float64.
    precision = torch.float32 if positions.device.type == "mps" else torch.float64
    half = d_model // 2
    exponent = torch.arange(half, dtype=precision, device=positions.device)
    exponent = exponent / (max(half - 1, 1) if layout == "sinusoidal_halves" else half)  # from 0 to (almost) 1
    angles = positions.unsqueeze(-1).to(precision) * torch.exp(-math.log(10000.0) * exponent)
    if layout == "sinusoidal":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(dtype)


class VaswaniPositionalEncoding(nn.Module):
    """Positional encoding (3.5): sinusoids, or the learned table of Table 3, row E."""

    def __init__(self, config: VaswaniConfig) -> None:
        super().__init__()
        self.config = config
        if config.position_encoding == "learned":
            self.table = nn.Embedding(config.max_position_embeddings, config.d_model)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype, length: int) -> torch.Tensor:
        """Encode integer `positions` as `[*positions.shape, d_model]`, in a sequence of `length` tokens."""
        config, most = self.config, self.config.max_positions
        if most is not None and length > most:
            raise ValueError(
                f"a sequence of {length} tokens has more than max_position_embeddings = {most}; truncate it to "
                "that length"
            )
        if config.position_encoding == "learned":
            return self.table(positions)
        positions = positions + config.position_offset
        return sinusoidal_positions(positions, config.d_model, config.position_encoding, dtype)


class VaswaniPreTrainedModel(PreTrainedModel):
    """Base class of the models: supported features and weight initialization."""

    config_class = VaswaniConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VaswaniEncoderLayer", "VaswaniDecoderLayer"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @property
    def _shares_embeddings(self) -> bool:
        """Whether source and target share one vocabulary and embedding matrix."""
        return self.config.tie_word_embeddings and self.config.target_vocab_size is None

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        if self.config.target_vocab_size is not None:
            raise ValueError("resize_token_embeddings: separate source and target vocabularies cannot be resized")
        if not self._shares_embeddings and self.get_decoder() is not self:
            self.get_decoder().resize_token_embeddings(*args, **kwargs)
        return super().resize_token_embeddings(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize as the authors' code does.

        Linear weights are Glorot-uniform, +-sqrt(6 / (fan_in + fan_out)); biases zero; embeddings N(0, 1 / d_model).
        """
        if isinstance(module, nn.Linear):
            limit = math.sqrt(6.0 / (module.in_features + self._fan_out(module)))
            init.uniform_(module.weight, -limit, limit)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)

    def _fan_out(self, linear: nn.Linear) -> int:
        """Fan-out of a linear layer for its initialization.

        The authors' code initializes Q, K and V (in encoder-decoder attention K and V) as one joint matrix, whose
        fan-out counts.
        """
        for module in self.modules():
            if isinstance(module, VaswaniAttention):
                joint = [module.k_proj, module.v_proj] + ([] if module.is_cross else [module.q_proj])
                if linear in joint:
                    return sum(projection.out_features for projection in joint)
        return linear.out_features


class VaswaniStack(VaswaniPreTrainedModel):
    """Encoder or decoder (3.1): embeddings plus positional encodings, then N layers."""

    input_prefix = ""  # prefix of its arguments in the whole model's `forward`

    def __init__(self, config: VaswaniConfig, vocab_size: int, layer_class: type[nn.Module], layers: int) -> None:
        super().__init__(config)
        self.embed_tokens = VaswaniEmbedding(config, vocab_size)
        self.embed_positions = VaswaniPositionalEncoding(config)
        self.layers = nn.ModuleList([layer_class(config, index) for index in range(layers)])
        self.gradient_checkpointing = False
        self.post_init()

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
        """Input of the first layer (3.5, 5.4): `embedded` `[batch, length, d_model]` plus positions, with dropout.

        Positions are counted from the first token that is not padding in `attention_mask` `[batch, past + length]`.
        """
        length = embedded.shape[1]
        if attention_mask is None or attention_mask.dim() != 2:  # there is no padding on the left
            positions = (torch.arange(length, device=embedded.device) + past).unsqueeze(0)  # [1, length]
        else:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]  # [batch, length]
        longest = length if isinstance(past, torch.Tensor) else past + length
        hidden_states = embedded + self.embed_positions(positions, embedded.dtype, longest)
        return drop_out(hidden_states, self.config.dropout, self.training)


class VaswaniEncoder(VaswaniStack):
    """The encoder stack (3.1)."""

    _can_record_outputs = {"hidden_states": VaswaniEncoderLayer, "attentions": VaswaniAttention}

    def __init__(self, config: VaswaniConfig) -> None:
        super().__init__(config, config.vocab_size, VaswaniEncoderLayer, config.encoder_layers)

    @strict_keywords
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode `input_ids` `[batch, source]`, or `inputs_embeds` (already scaled) `[batch, source, d_model]`."""
        inputs_embeds = self.embed(input_ids, inputs_embeds)
        hidden_states = self.add_positions(inputs_embeds, attention_mask, past=0)
        mask, attention = self_attention_mask(bidirectional_mask, self.config, inputs_embeds, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, attention=attention, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)

    def encode_tokens(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> BaseModelOutput:
        """Encode as `forward` does, without computing padding, whose states are zero."""
        source = SourceTokens(attention_mask)
        hidden_states = source.pack(self.add_positions(self.embed(input_ids), attention_mask, past=0))
        for layer in self.layers:
            hidden_states = layer(hidden_states, source, attention=unpadded_attention_forward)
        return BaseModelOutput(last_hidden_state=source.unpack(hidden_states)[:, : input_ids.shape[1]])

    def can_encode_tokens(self) -> bool:
        """Whether `encode_tokens` computes what `forward` does."""
        is_full = self.config._attn_implementation == "sdpa" and self.config.attention_neighborhood is None
        is_plain = {type(self), *map(type, self.layers)} == {VaswaniEncoder, VaswaniEncoderLayer}
        return is_full and is_plain and not self.training and not any(map(has_hooks, self.modules()))


class VaswaniDecoder(VaswaniStack):
    """The decoder stack (3.1), whose layers also attend to the encoder."""

    input_prefix = "decoder_"  # error messages then name the arguments of the whole model
    _can_record_outputs = {
        "hidden_states": VaswaniDecoderLayer,
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VaswaniConfig) -> None:
        super().__init__(config, config.output_vocab_size, VaswaniDecoderLayer, config.decoder_layers)

    @strict_keywords
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode `input_ids` `[batch, target]`, or `inputs_embeds` (already scaled) `[batch, target, d_model]`.

        `attention_mask` is `[batch, past + target]`, `encoder_attention_mask` `[batch, source]`.
        """
        inputs_embeds = self.embed(input_ids, inputs_embeds)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
            if encoder_hidden_states is not None:
                cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        self_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        past = 0 if self_cache is None else self_cache.get_seq_length()
        hidden_states = self.add_positions(inputs_embeds, attention_mask, past)
        mask, kwargs["attention"] = self_attention_mask(
            create_causal_mask, self.config, inputs_embeds, attention_mask, self_cache
        )
        cross_mask = None
        if encoder_hidden_states is not None:
            cross_mask, kwargs["cross_attention"] = source_mask(
                self.config, inputs_embeds, encoder_attention_mask, encoder_hidden_states
            )
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            cache = None  # the backward pass runs the layers again, and would extend it twice
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, encoder_hidden_states, cross_mask, cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE: cache})


class VaswaniModel(VaswaniPreTrainedModel):
    """Encoder and decoder (Figure 1), without the softmax."""

    def __init__(self, config: VaswaniConfig) -> None:
        super().__init__(config)
        if self._shares_embeddings:
            self.shared = VaswaniEmbedding(config, config.vocab_size)
            self._tied_weights_keys = {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
            }
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: VaswaniEmbedding) -> None:
        self.encoder.embed_tokens = value
        if self._shares_embeddings:
            self.shared = self.decoder.embed_tokens = value

    @strict_keywords
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode the source, decode the target; `last_hidden_state` is `[batch, target, d_model]`.

        Without `attention_mask`, every `pad_token_id` in `input_ids` counts as padding.
        """
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)  # [batch, source]
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "give either decoder_input_ids or decoder_inputs_embeds; for a trainer whose loss takes the labels, "
                "DataCollatorForSeq2Seq(tokenizer, model=model) makes them"
            )
        if encoder_outputs is None:
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        else:
            encoded = as_encoder_outputs(encoder_outputs)
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            **{CACHE: getattr(decoded, CACHE)},
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


class VaswaniForConditionalGeneration(VaswaniPreTrainedModel, VaswaniGenerationMixin):
    """The whole model: encoder, decoder, and the output projection, which shares the embedding matrix if tied (3.4)."""

    def __init__(self, config: VaswaniConfig) -> None:
        super().__init__(config)
        self.model = VaswaniModel(config)
        self.lm_head = nn.Linear(config.d_model, config.output_vocab_size, bias=False)
        if config.logits_bias:  # constant, as in MarianMT
            del self.lm_head.bias
            self.lm_head.register_buffer("bias", torch.zeros(config.output_vocab_size))
        self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        if self._shares_embeddings:
            names = ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens")
            self._tied_weights_keys = {f"{name}.weight": "model.shared.weight" for name in names}
        self.generation_config = paper_generation_config(config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; see `transformers.PreTrainedModel.from_pretrained`.

        If `generation_config.json` is missing or has no search options, the model gets `paper_generation_config`.
        """
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with `output_loading_info`
        if not has_search_options(model.generation_config):
            model.generation_config = paper_generation_config(model.config)
        if model.all_tied_weights_keys != model.get_expanded_tied_weights_keys(all_submodels=True):
            model.untie()  # the file has several matrices, and transformers warned that it does not tie them
        return loaded

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model; see `transformers.PreTrainedModel.save_pretrained`.

        If its embeddings and softmax no longer share one matrix, for example after an adapter of `lm_head` was merged,
        the model is untied first, with `tie_word_embeddings=False`, so that it loads unchanged.
        """
        parts = (self.lm_head, self.model.encoder.embed_tokens, self.model.decoder.embed_tokens)
        is_plain = all(type(part) in (nn.Linear, VaswaniEmbedding) and not part.weight.is_meta for part in parts)
        state = kwargs.get("state_dict")
        if is_plain and state is None and not self.is_tied:
            self.untie()
        if state is not None and not self.config.tie_word_embeddings:  # a loaded model has no `shared`
            kwargs["state_dict"] = {
                name: tensor.clone() if name.endswith("embed_tokens.weight") else tensor
                for name, tensor in state.items()
                if name != "model.shared.weight"
            }
        if has_filled_length(vars(self.generation_config)):
            self.generation_config.max_length = None
        super().save_pretrained(*args, **kwargs)

    @property
    def is_tied(self) -> bool:
        """Whether the matrices that `config` declares tied are shared."""
        config, model, matrix = self.config, self.model, self.model.decoder.embed_tokens.weight
        is_one = config.target_vocab_size is not None or model.encoder.embed_tokens.weight is matrix
        return config.tie_word_embeddings and is_one and self.lm_head.weight is matrix

    def untie(self) -> None:
        """Give the encoder's embedding, the decoder's embedding and the softmax separate matrices."""
        self.config.tie_word_embeddings = False
        self.all_tied_weights_keys = self.model.all_tied_weights_keys = {}
        if hasattr(self.model, "shared"):
            del self.model.shared
        encoder, matrix = self.model.encoder, self.model.decoder.embed_tokens.weight
        if self.lm_head.weight is matrix:
            self.lm_head = copy.deepcopy(self.lm_head)
        if encoder.embed_tokens.weight is matrix or encoder.embed_tokens.weight is self.lm_head.weight:
            encoder.embed_tokens = copy.deepcopy(encoder.embed_tokens)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Shift labels `[batch, target]` right by one position, after the start token (3.1)."""
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)
        return shifted.masked_fill(shifted.eq(-100), self.config.pad_token_id)

    def is_unmodified(self) -> bool:
        """Whether `IncrementalDecoder` would compute the same as `forward`.

        The decoder calls other layers, such as adapters and quantized ones, which may be of any class and in training.
        """
        model, decoder, lm_head = self.model, self.model.decoder, self.lm_head
        layers: Any = decoder.layers
        parts = [model, decoder, *layers]
        parts += [part for layer in layers for part in (layer.self_attn, layer.encoder_attn, layer.feed_forward)]
        ours = (VaswaniModel, VaswaniDecoder, VaswaniDecoderLayer, VaswaniAttention, VaswaniFeedForward)
        prepare = getattr(self.prepare_inputs_for_generation, "__func__", None)  # prefix tuning replaces it
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)  # None: eager
        return (
            type(self).forward is VaswaniForConditionalGeneration.forward
            and prepare is GenerationMixin.prepare_inputs_for_generation
            and all(type(part) in ours for part in parts)
            and (attention is None or attention.__module__.startswith("transformers.integrations."))
            and not any(part.training for part in parts)
            and not any(map(has_hooks, (self, model, *decoder.modules(), *lm_head.modules())))
        )

    @strict_keywords
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Logits `[batch, target, vocabulary]` and, with `labels`, their mean negative log-likelihood.

        Args:
            input_ids: `[batch, source]`, ending in EOS, padded on either side.
            attention_mask: `[batch, source]`, 1 for tokens, 0 for padding.
            decoder_input_ids: `[batch, target]`; by default made from `labels`.
            decoder_attention_mask: `[batch, past + target]`; needed only if the target is padded on the left.
            labels: `[batch, target]`, ending in EOS, -100 at positions that the loss ignores.
            logits_to_keep: Number of last positions to compute logits for, 0 for all; or the indices of positions.
            num_items_in_batch: Divisor of the summed loss, such as the number of labels in the whole global batch;
                by default the number of labels given here.
            kwargs: Keywords of transformers. `output_attentions` needs a model that is loaded with
                `attn_implementation="eager"`; other implementations return no attentions, and transformers warns.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs: Seq2SeqModelOutput = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache,
            inputs_embeds,
            decoder_inputs_embeds,
            use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])  # [batch, kept, vocabulary]
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
            loss = loss / (labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)
        shared = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **shared)


def drop_out(hidden_states: torch.Tensor, probability: float, training: bool) -> torch.Tensor:
    """`F.dropout` (5.4), twice as fast on a CPU.

    There PyTorch draws one 64-bit number for each element, on one thread. Here one number decides four elements, with
    16 bits each, which rounds the probability to a multiple of 1/65,536.
    """
    values = 2**16
    kept = round((1 - probability) * values)  # among the values of 16 bits
    is_ours = hidden_states.device.type == "cpu" and not torch.compiler.is_compiling()  # a graph has no `random_`
    if not training or not is_ours or not 0 < kept < values:
        return F.dropout(hidden_states, p=probability, training=training)
    elements = hidden_states.numel()
    drawn = torch.empty(-(-elements // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = drawn.view(torch.int16)[:elements].view(hidden_states.shape)
    return hidden_states * (bits < kept - values // 2).to(hidden_states.dtype).mul_(values / kept)
