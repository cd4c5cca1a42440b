"""Weights under fairseq's names, which MarianMT and FSMT use too, as a model of this package."""

import re
from typing import Any

import torch

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration


Weights = dict[str, torch.Tensor]

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


def model_from_weights(weights: Weights, **fields: Any) -> VaswaniForConditionalGeneration:
    """A model that computes with copies of these weights, in float32 and evaluation mode.

    Sizes are read off the weights. Which of the embeddings and the softmax share a matrix, too, so that what a flag
    says or omits does not matter.

    Args:
        weights: fairseq's names; `decoder.output_projection.weight` `[vocabulary, d_model]` and, where the softmax has
            one, `decoder.output_projection.bias` `[vocabulary]`; `embed_positions.weight` `[positions, d_model]` of
            both stacks only where positions are learned.
        fields: Fields of the configuration that no weight tells.

    Raises:
        ValueError: A weight is missing, of another shape, or unknown; or the fields do not fit.
    """
    config = VaswaniConfig(**_sizes(weights), **fields)
    model = VaswaniForConditionalGeneration(config)
    names = {_renamed(name): name for name in weights}
    if config.tie_word_embeddings and config.target_vocab_size is None:
        names["model.shared.weight"] = "encoder.embed_tokens.weight"
    state = {ours: weights[theirs] for ours, theirs in names.items()}
    _require_fit(model.state_dict(), state, names)
    model.load_state_dict(state)
    return model.eval()


def _renamed(name: str) -> str:
    if name.startswith(_OUTPUT):
        return name.replace(_OUTPUT, "lm_head.")
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return f"model.{name}"


def _sizes(weights: Weights) -> dict[str, Any]:
    """The fields of the configuration that the weights tell."""

    def weight(name: str) -> torch.Tensor:
        if name not in weights:
            raise ValueError(f"weights: there is no {name}; only the paper's encoder-decoder can be expressed")
        return weights[name]

    source, target = (weight(f"{stack}.embed_tokens.weight") for stack in ("encoder", "decoder"))
    tied = torch.equal(target, weight(f"{_OUTPUT}weight"))
    all_tied = tied and torch.equal(source, target)
    layers = {match[0]: match for match in map(_LAYER.match, weights) if match}
    return {
        "vocab_size": len(source),
        "target_vocab_size": None if all_tied else len(target),
        "tie_word_embeddings": tied,
        "logits_bias": f"{_OUTPUT}bias" in weights,
        "d_model": source.shape[1],
        "d_ff": len(weight("encoder.layers.0.fc1.weight")),
        "decoder_d_ff": len(weight("decoder.layers.0.fc1.weight")),
        "encoder_layers": sum(match[1] == "encoder" for match in layers.values()),
        "decoder_layers": sum(match[1] == "decoder" for match in layers.values()),
    }


def _require_fit(expected: Weights, state: Weights, names: dict[str, str]) -> None:
    """That `state` has just the weights of a model, in their shapes; `names` are those that the source calls them."""
    if unknown := [names[name] for name in state if name not in expected]:
        raise ValueError(f"weights: {_some(unknown)} cannot be expressed; only the paper's post-norm layers can")
    if missing := [name for name in expected if name not in state]:
        raise ValueError(f"weights: {_some(missing)} (by our names) cannot be filled; the checkpoint is not complete")
    for name, weight in expected.items():
        if weight.shape != state[name].shape:
            shapes = f"{list(state[name].shape)}, but must be {list(weight.shape)}"
            raise ValueError(f"weights: {names[name]} is {shapes}; all layers and both stacks must be of one width")


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
