"""Models from weights under fairseq's names, which MarianMT and FSMT of transformers share."""

import re
from typing import Any

import torch

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration


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
_OUTPUT = "decoder.output_projection."
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.")


def model_from_weights(
    weights: Weights, heads: tuple[int | None, int | None], **fields: Any
) -> VaswaniForConditionalGeneration:
    """A model with copies of the weights, in float32 and evaluation mode.

    The weights determine the sizes, and which embeddings are tied to each other and to the softmax. The LayerNorm
    epsilon is PyTorch's default.

    Args:
        weights: Weights by fairseq's names: `decoder.output_projection.weight` `[vocabulary, d_model]`, optionally
            `decoder.output_projection.bias` `[vocabulary]`, and `embed_positions.weight` `[positions, d_model]` of both
            stacks only if positions are learned. An encoder layer has `self_attn.{q,k,v,out}_proj`, `fc1`, `fc2`,
            `self_attn_layer_norm` and `final_layer_norm`; a decoder layer also has `encoder_attn.{q,k,v,out}_proj` and
            `encoder_attn_layer_norm`; each with `.weight` and `.bias`.
        heads: Number of heads of the encoder and of the decoder.
        fields: Configuration fields that the weights do not determine.

    Raises:
        ValueError: A weight is missing, of another shape, or unknown; or the fields do not fit.
    """
    if heads[0] is None or heads[0] != heads[1]:
        raise ValueError(
            f"encoder_attention_heads: {heads[0]} of the encoder and {heads[1]} of the decoder; only one number for "
            "both can be expressed"
        )
    fields = {"num_heads": heads[0], "layer_norm_eps": 1e-5, "zero_padding_embedding": False, **fields}
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
