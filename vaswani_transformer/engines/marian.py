"""Conversion to transformers' MarianMT, and its export."""

import copy
from pathlib import Path

import torch
from torch import nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from ..convert.weights import Weights, with_fairseq_layers
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_options_vaswani import set_options
from .engine import export_directory, require_fields, save_stock_tokenizer


# Rows of the position table of an exported model. Its sinusoids are computed in Python whenever it is loaded.
POSITIONS = 1024

# Length limit of `generate` if ours is relative to the source; OPUS-MT models have the same.
_MAX_LENGTH = 512

# Logit of padding, whose row of the tied matrix is zero; within the range of float16.
_NEVER = -1e4

# Suffixes of weights whose rows, or whose columns, are dimensions of the residual stream.
_STREAM_ROWS = ("out_proj.weight", "out_proj.bias", "fc2.weight", "fc2.bias", "layer_norm.weight", "layer_norm.bias")
_STREAM_COLUMNS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight")
_EMBEDDINGS = ("shared.weight", "embed_tokens.weight")


def to_marian(model: VaswaniForConditionalGeneration, positions: int = POSITIONS) -> MarianMTModel:
    """Convert to a MarianMT model with the same logits, except the logit of padding.

    MarianMT has all sines before all cosines, so the dimensions of the residual stream are permuted. If padding embeds
    as zero, its row of the embedding matrix becomes zero; where the softmax shares that matrix, the logit of padding
    becomes -10,000. The result has the LayerNorm epsilon of `model` in memory; MarianMT does not save it, so a saved
    model loads with 1e-5. Sources must be padded on the right, and have at most `positions` tokens.

    Raises:
        ValueError: MarianMT cannot express the model.
    """
    if not model.is_tied:  # whatever its configuration says
        model = copy.deepcopy(model)
        model.untie()
    config = model.config
    require_marian_heads(config, "MarianMT")
    require_fields(config, {"attention_neighborhood": None, "position_offset": 0}, "MarianMT")
    if config.position_encoding not in ("sinusoidal", "sinusoidal_marian"):
        raise ValueError("position_encoding: must be 'sinusoidal' or 'sinusoidal_marian' for MarianMT")
    marian = MarianMTModel(marian_config(config, positions)).eval()
    marian.load_state_dict(_marian_weights(model, marian.state_dict()), strict=True)
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.layer_norm_eps
    return marian


def marian_config(config: VaswaniConfig, positions: int) -> MarianConfig:
    """The configuration of a MarianMT model of the same architecture for sequences of up to `positions` tokens."""
    return MarianConfig(
        vocab_size=config.vocab_size,
        decoder_vocab_size=config.output_vocab_size,
        share_encoder_decoder_embeddings=config.tie_word_embeddings and config.target_vocab_size is None,
        tie_word_embeddings=config.tie_word_embeddings,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.decoder_d_ff,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        activation_function=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        scale_embedding=True,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        forced_eos_token_id=None,
        max_position_embeddings=positions,
    )


def require_marian_heads(config: VaswaniConfig, client: str) -> None:
    """Raise a ValueError if the widths of heads are not d_model / num_heads, as in `marian_config`."""
    width = config.d_model // config.num_heads
    require_fields(config, {"d_k": width, "d_v": width}, client)


def _marian_weights(model: VaswaniForConditionalGeneration, expected: Weights) -> Weights:
    """MarianMT's weights for our model; `expected` are a new MarianMT model's, which include the position tables."""
    config = model.config
    weights = {with_fairseq_layers(name): weight.detach().clone() for name, weight in model.state_dict().items()}
    bias = weights.pop("lm_head.bias", torch.zeros(config.output_vocab_size))  # [vocabulary]
    tied = (*_EMBEDDINGS, "lm_head.weight") if config.tie_word_embeddings else _EMBEDDINGS
    if config.zero_padding_embedding:
        for name, weight in weights.items():
            if name.endswith(tied):
                weight[config.pad_token_id] = 0.0
        if config.tie_word_embeddings:
            bias[config.pad_token_id] = _NEVER
    weights["final_logits_bias"] = bias.unsqueeze(0)  # [1, vocabulary]
    if config.position_encoding == "sinusoidal":
        weights = {name: _in_halves(name, weight) for name, weight in weights.items()}
    for name, weight in expected.items():
        if name.endswith("embed_positions.weight"):
            weights[name] = weight
        elif name.endswith("_proj.bias"):  # zero if our attention has none
            weights.setdefault(name, torch.zeros_like(weight))
    return weights


def _in_halves(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Permute the residual stream of a weight: dimensions 0, 2, 4, ..., which have sines, before 1, 3, 5, ..."""
    if name.endswith(_STREAM_ROWS):
        return torch.cat((weight[0::2], weight[1::2]))  # [d_model, ...]
    if name.endswith((*_STREAM_COLUMNS, *_EMBEDDINGS, "lm_head.weight")):
        return torch.cat((weight[:, 0::2], weight[:, 1::2]), dim=1)  # [..., d_model]
    return weight


def export(
    model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, output: str | Path, force: bool = False
) -> Path:
    """Write a directory that transformers loads without this package: a MarianMT model, tokenizer, generation_config.

    The weights are `to_marian`'s, with a LayerNorm epsilon of 1e-5. `generate` then searches with the same beams and
    alpha by the rules of transformers: the length penalty is `|Y|^alpha` instead of `((5 + |Y|) / 6)^alpha`; a sentence
    stops once no live hypothesis, if it ended now, would score better; and all sentences have one length limit, 512
    tokens unless the model's generation_config sets one, instead of source length + 50.

    For arguments and errors, see `export_directory`; a ValueError also names a setting that MarianMT cannot express.
    """
    output = Path(output)
    with export_directory(output, force, model, tokenizer) as directory:
        marian = to_marian(model)
        marian.generation_config = transformers_search(model.generation_config)
        marian.save_pretrained(directory)
        save_stock_tokenizer(tokenizer, directory, POSITIONS)
    return output


def transformers_search(ours: GenerationConfig, positions: int = POSITIONS) -> GenerationConfig:
    """A generation_config for transformers' search, as close to ours as its rules permit."""
    fields = set_options(ours)
    # With "never", transformers continues until the best live log-probability over limit^alpha is lower than all
    # finished scores, which takes hundreds of steps with a limit of 512.
    if fields.get("length_penalty_type") != "transformers" and fields.get("early_stopping") == "never":
        fields["early_stopping"] = False
    known = GenerationConfig().to_dict().keys()
    if (fields.get("num_beams") or 1) == 1:  # transformers refuses to save fields that greedy search ignores
        known -= {"length_penalty", "early_stopping"}
    fields = {name: value for name, value in fields.items() if name in known}
    if fields.get("max_new_tokens") is None:
        fields["max_length"] = min(fields.get("max_length") or _MAX_LENGTH, positions)
    return GenerationConfig(**fields)
