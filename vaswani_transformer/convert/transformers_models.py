"""MarianMT (OPUS-MT) and FSMT (WMT19) of transformers as models of this package."""

from typing import Any

import torch
from transformers import FSMTForConditionalGeneration, GenerationConfig, MarianMTModel, PreTrainedModel

from ..model.modeling_vaswani import VaswaniForConditionalGeneration, sinusoidal_positions
from .weights import Weights, model_from_weights


# Of tables in float16, or of angles computed in float32; other positions differ by about 1.
_ROUNDING = 1e-2


def convert_marian(model: MarianMTModel) -> VaswaniForConditionalGeneration:
    """The model that gives the same logits, and whose `generate` searches as its own does.

    It has the source's type, and is on the CPU; the source is not changed. What the source's generation configuration
    leaves open is as transformers has it, with its length penalty `|Y|^alpha`.

    Raises:
        ValueError: The source has something that the architecture cannot express.
    """
    weights = _weights(model, "sinusoidal_marian", first=0)
    weights.pop("shared.weight", None)
    weights["decoder.output_projection.weight"] = weights.pop("lm_head.weight")
    bias = weights.pop("final_logits_bias").squeeze(0)  # [vocabulary]
    if bias.any():
        weights["decoder.output_projection.bias"] = bias
    return _converted(model, weights, position_encoding="sinusoidal_marian")


def convert_fsmt(model: FSMTForConditionalGeneration) -> VaswaniForConditionalGeneration:
    """As `convert_marian`, for FSMT, whose vocabularies are separate and whose positions begin behind the padding's id.

    Raises:
        ValueError: The source has something that the architecture cannot express.
    """
    first = model.config.pad_token_id + 1
    weights = _weights(model, "sinusoidal_halves", first)
    converted = _converted(model, weights, position_encoding="sinusoidal_halves", position_offset=first)
    converted.config.source_language, converted.config.target_language = model.config.langs
    return converted


def _weights(model: PreTrainedModel, layout: str, first: int) -> Weights:
    """The weights by fairseq's names, without tables of positions, which must be the sinusoids of `layout`."""
    weights = {name.removeprefix("model."): weight for name, weight in model.state_dict().items()}
    for stack in ("encoder", "decoder"):
        table = weights.pop(f"{stack}.embed_positions.weight")[first:].float()  # [positions, d_model]
        positions = torch.arange(first, first + len(table), device=table.device)
        if not torch.allclose(table, sinusoidal_positions(positions, table.shape[1], layout), rtol=0, atol=_ROUNDING):
            raise ValueError(f"embed_positions: the {stack}'s are not the sinusoids of {model.config.model_type}")
    return weights


def _converted(model: PreTrainedModel, weights: Weights, **positions: Any) -> VaswaniForConditionalGeneration:
    config = model.config
    if config.encoder_attention_heads != config.decoder_attention_heads:
        raise ValueError(
            f"encoder_attention_heads: {config.encoder_attention_heads} of the encoder and "
            f"{config.decoder_attention_heads} of the decoder; only one number for both can be expressed"
        )
    if not config.scale_embedding:
        raise ValueError("scale_embedding: is false, but embeddings are always multiplied by sqrt(d_model), as in 3.4")
    converted = model_from_weights(
        weights,
        num_heads=config.encoder_attention_heads,
        activation=config.activation_function,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        layer_norm_eps=1e-5,  # PyTorch's default
        zero_padding_embedding=False,
        **_tokens(model),
        **positions,
    )
    converted.generation_config = _search(model)
    return converted.to(model.dtype)


def _tokens(model: PreTrainedModel) -> dict[str, Any]:
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    return {name: getattr(model.config, name) for name in names}


def _search(model: PreTrainedModel) -> GenerationConfig:
    """How the source decodes. A configuration made by itself, since transformers would not load all fields of one that
    was derived from a model's."""
    settings = model.generation_config.to_diff_dict()
    for name in ("_from_model_config", "transformers_version"):
        settings.pop(name, None)
    return GenerationConfig(**{**_tokens(model), **settings, "length_penalty_type": "transformers"})
