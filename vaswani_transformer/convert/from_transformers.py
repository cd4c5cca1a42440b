"""Conversion of models of transformers: MarianMT (OPUS-MT) and FSMT (WMT19)."""

from typing import Any

from transformers import FSMTForConditionalGeneration, GenerationConfig, MarianMTModel, PreTrainedModel

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_options_vaswani import SPECIAL_IDS, set_options
from .weights import Weights, model_from_weights


def from_marian(model: MarianMTModel) -> VaswaniForConditionalGeneration:
    """Convert a MarianMT model to one with the same logits, and the same search in `generate`.

    The result is on the CPU, in the source's dtype; the source is not changed. Fields that its generation_config does
    not set get the defaults of transformers, with the length penalty `|Y|^alpha`.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    weights = _weights(model)
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
    converted = _converted(
        model, _weights(model), position_encoding="sinusoidal_halves", position_offset=model.config.pad_token_id + 1
    )
    converted.config.source_language, converted.config.target_language = model.config.langs
    return converted


def _weights(model: PreTrainedModel) -> Weights:
    """The weights of a MarianMT or FSMT model by fairseq's names, without the tables of sinusoids."""
    state = model.state_dict().items()
    return {name.removeprefix("model."): weight for name, weight in state if "embed_positions" not in name}


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
    # A new object: transformers does not load all fields of a generation_config that was derived from a config.
    converted.generation_config = GenerationConfig(
        **{**tokens, **set_options(model.generation_config), "length_penalty_type": "transformers"}
    )
    return converted.to(model.dtype)
