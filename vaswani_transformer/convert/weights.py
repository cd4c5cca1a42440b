"""Models from weights under fairseq's names, which MarianMT and FSMT of transformers share."""

import re
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration, sinusoidal_positions


Weights = dict[str, torch.Tensor]

# Names in fairseq and in this package; all other names are equal.
_RENAMED = (
    (".self_attn_layer_norm.", ".self_attn_residual.norm."),
    (".encoder_attn_layer_norm.", ".encoder_attn_residual.norm."),
    (".final_layer_norm.", ".feed_forward_residual.norm."),
    (".fc1.", ".feed_forward.fc1."),
    (".fc2.", ".feed_forward.fc2."),
    (".embed_positions.weight", ".embed_positions.table.weight"),
)
# Fields of config and generation_config with the ids of special tokens.
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")

_OUTPUT = "decoder.output_projection."
# Tolerance for tables in float16 and angles computed in float32; other encodings differ by about 1.
_ROUNDING = 1e-2
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.")


def model_from_weights(weights: Weights, **fields: Any) -> VaswaniForConditionalGeneration:
    """A model with copies of the weights, in float32 and evaluation mode.

    The weights determine the sizes, and which embeddings are tied to each other and to the softmax.

    Args:
        weights: Weights by fairseq's names: `decoder.output_projection.weight` `[vocabulary, d_model]`, optionally
            `decoder.output_projection.bias` `[vocabulary]`, and `embed_positions.weight` `[positions, d_model]` of both
            stacks only if positions are learned. An encoder layer has `self_attn.{q,k,v,out}_proj`, `fc1`, `fc2`,
            `self_attn_layer_norm` and `final_layer_norm`; a decoder layer also has `encoder_attn.{q,k,v,out}_proj` and
            `encoder_attn_layer_norm`; each with `.weight` and `.bias`.
        fields: Configuration fields that the weights do not determine.

    Raises:
        ValueError: A weight is missing, of another shape, or unknown; or the fields do not fit.
    """
    try:
        model = VaswaniForConditionalGeneration(VaswaniConfig(**_sizes(weights), **fields))
        state = {_renamed(name): weight for name, weight in weights.items()}
        if "model.shared.weight" in model.state_dict():
            state["model.shared.weight"] = weights["encoder.embed_tokens.weight"]
        model.load_state_dict(state)
    except (KeyError, RuntimeError) as error:  # a weight is missing; names or shapes differ
        reason = " ".join(str(error).split())
        raise ValueError(f"weights: only the paper's encoder-decoder can be expressed ({reason})") from error
    return model.eval()


def _renamed(name: str) -> str:
    if name.startswith(_OUTPUT):
        return name.replace(_OUTPUT, "lm_head.")
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return f"model.{name}"


def with_fairseq_layers(name: str) -> str:
    """Rename the parts inside a layer in a weight's name to fairseq's."""
    for theirs, ours in _RENAMED:
        name = name.replace(ours, theirs)
    return name


def _sizes(weights: Weights) -> dict[str, Any]:
    """Configuration fields that the weights determine."""
    source, target = (weights[f"{stack}.embed_tokens.weight"] for stack in ("encoder", "decoder"))
    tied = torch.equal(target, weights[f"{_OUTPUT}weight"])
    all_tied = tied and torch.equal(source, target)
    layers = {match[0]: match for match in map(_LAYER.match, weights) if match}
    return {
        "vocab_size": len(source),
        "target_vocab_size": None if all_tied else len(target),
        "tie_word_embeddings": tied,
        "logits_bias": f"{_OUTPUT}bias" in weights,
        "d_model": source.shape[1],
        "d_ff": len(weights["encoder.layers.0.fc1.weight"]),
        "decoder_d_ff": len(weights["decoder.layers.0.fc1.weight"]),
        "encoder_layers": sum(match[1] == "encoder" for match in layers.values()),
        "decoder_layers": sum(match[1] == "decoder" for match in layers.values()),
    }


def weights_by_fairseq_names(model: PreTrainedModel, layout: str, first: int) -> Weights:
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


def model_from_transformers(
    model: PreTrainedModel, weights: Weights, **positions: Any
) -> VaswaniForConditionalGeneration:
    """A model of this package with the weights, search and dtype of a MarianMT or FSMT model.

    Args:
        model: The source; it is not changed.
        weights: Its weights by fairseq's names.
        positions: Configuration fields that describe the positions.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    config, tokens = model.config, {name: getattr(model.config, name) for name in SPECIAL_IDS}
    if not config.scale_embedding:
        raise ValueError("scale_embedding: is false, but embeddings are always multiplied by sqrt(d_model), as in 3.4")
    converted = model_from_weights(
        weights,
        num_heads=equal_heads(config.encoder_attention_heads, config.decoder_attention_heads),
        activation=config.activation_function,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        layer_norm_eps=1e-5,  # PyTorch's default
        zero_padding_embedding=False,
        **tokens,
        **positions,
    )
    search = model.generation_config.to_diff_dict()
    search = {name: value for name, value in search.items() if name[0] != "_" and name != "transformers_version"}
    # A new object: transformers does not load all fields of a generation_config that was derived from a config.
    converted.generation_config = GenerationConfig(**{**tokens, **search, "length_penalty_type": "transformers"})
    return converted.to(model.dtype)


def equal_heads(encoder: int | None, decoder: int | None) -> int:
    """The number of heads of both stacks; raises a ValueError if they differ or are unknown."""
    if encoder is None or encoder != decoder:
        raise ValueError(
            f"encoder_attention_heads: {encoder} of the encoder and {decoder} of the decoder; "
            f"only one number for both can be expressed"
        )
    return encoder
