"""Conversion of models of transformers: MarianMT (OPUS-MT) and FSMT (WMT19)."""

from typing import Any

import torch
from transformers import FSMTForConditionalGeneration, GenerationConfig, MarianMTModel, PreTrainedModel

from ..model.modeling_vaswani import VaswaniForConditionalGeneration, sinusoidal_positions
from .weights import SPECIAL_IDS, Weights, model_from_weights


# Tolerance for tables in float16 and angles computed in float32; other encodings differ by about 1.
_ROUNDING = 1e-2


def from_marian(model: MarianMTModel) -> VaswaniForConditionalGeneration:
    """Convert a MarianMT model to one with the same logits, and the same search in `generate`.

    The result is on the CPU, in the source's dtype; the source is not changed. Fields that its generation_config does
    not set get the defaults of transformers, with the length penalty `|Y|^alpha`.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    weights = _weights(model, "sinusoidal_marian", first=0)
    weights.pop("shared.weight", None)
    weights["decoder.output_projection.weight"] = weights.pop("lm_head.weight")
    bias = weights.pop("final_logits_bias").squeeze(0)  # [vocabulary]
    if bias.any():
        weights["decoder.output_projection.bias"] = bias
    return _converted(model, weights, position_encoding="sinusoidal_marian")


def from_fsmt(model: FSMTForConditionalGeneration) -> VaswaniForConditionalGeneration:
    """Convert an FSMT model like `from_marian`.

    Its source and target vocabularies are separate, and its positions count from `pad_token_id` + 1.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    first = model.config.pad_token_id + 1
    weights = _weights(model, "sinusoidal_halves", first)
    converted = _converted(model, weights, position_encoding="sinusoidal_halves", position_offset=first)
    converted.config.source_language, converted.config.target_language = model.config.langs
    return converted


def _weights(model: PreTrainedModel, layout: str, first: int) -> Weights:
    """The weights by fairseq's names, without position tables.

    Args:
        model: A MarianMT or FSMT model of transformers.
        layout: Its layout of sinusoids, a `position_encoding` of `VaswaniConfig`.
        first: Row of the table for the first position.

    Raises:
        ValueError: The tables do not have these sinusoids.
    """
    weights = {name.removeprefix("model."): weight for name, weight in model.state_dict().items()}
    for stack in ("encoder", "decoder"):
        table = weights.pop(f"{stack}.embed_positions.weight")[first:].float()  # [positions, d_model]
        positions = torch.arange(first, first + len(table), device=table.device)
        if not torch.allclose(table, sinusoidal_positions(positions, table.shape[1], layout), rtol=0, atol=_ROUNDING):
            raise ValueError(f"embed_positions: the {stack}'s are not the sinusoids of {model.config.model_type}")
    return weights


def _converted(model: PreTrainedModel, weights: Weights, **positions: Any) -> VaswaniForConditionalGeneration:
    """A model of this package with these weights, and the search and dtype of a MarianMT or FSMT model.

    `positions` are the configuration fields that describe the positions.
    """
    config, tokens = model.config, {name: getattr(model.config, name) for name in SPECIAL_IDS}
    if not config.scale_embedding:
        raise ValueError("scale_embedding: is false, but embeddings are always multiplied by sqrt(d_model), as in 3.4")
    converted = model_from_weights(
        weights,
        heads=(config.encoder_attention_heads, config.decoder_attention_heads),
        activation=config.activation_function,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        **tokens,
        **positions,
    )
    search = model.generation_config.to_diff_dict()
    search = {name: value for name, value in search.items() if name[0] != "_" and name != "transformers_version"}
    # A new object: transformers does not load all fields of a generation_config that was derived from a config.
    converted.generation_config = GenerationConfig(**{**tokens, **search, "length_penalty_type": "transformers"})
    return converted.to(model.dtype)
