"""Conversion from and to MarianMT (OPUS-MT) models of transformers."""

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from ..model.embeddings_vaswani import sinusoidal_positions
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .weights import PLAIN, layers_renamed, model_from_transformers, require_fields, weights_of


def from_marian(model: MarianMTModel) -> VaswaniForConditionalGeneration:
    """Convert a MarianMT model to one with the same logits, and the same search in `generate`.

    The result is on the CPU, in the source's dtype; the source is not changed. Fields that its generation_config does
    not set get the defaults of transformers, with the length penalty `|Y|^alpha`.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    weights = weights_of(model, "sinusoidal_marian", first=0)
    weights.pop("shared.weight", None)
    weights["decoder.output_projection.weight"] = weights.pop("lm_head.weight")
    bias = weights.pop("final_logits_bias").squeeze(0)  # [vocabulary]
    if bias.any():
        weights["decoder.output_projection.bias"] = bias
    return model_from_transformers(model, weights, position_encoding="sinusoidal_marian")


def to_marian(model: VaswaniForConditionalGeneration, positions: int = 1024) -> MarianMTModel:
    """Convert to a MarianMT model with the same logits, except the logit of padding.

    Use it in memory only: `save_pretrained` of MarianMT saves neither the LayerNorm epsilon nor the layout of
    positions. The embedding of padding is zero.

    Args:
        model: The source; it is not changed.
        positions: Maximum length of a sequence.

    Raises:
        ValueError: MarianMT cannot express the model.
    """
    config = model.config
    if config.d_k != config.d_v or config.d_k * config.num_heads != config.d_model:
        raise ValueError(f"d_k, d_v: must be d_model / num_heads for MarianMT, are {config.d_k} and {config.d_v}")
    if config.position_encoding == "learned":
        raise ValueError("position_encoding: must be sinusoidal for MarianMT, is 'learned'")
    require_fields(config, PLAIN, "MarianMT")
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.decoder_d_ff,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            activation_function=config.activation,
            scale_embedding=True,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            forced_eos_token_id=None,
            max_position_embeddings=positions,
        )
    ).eval()
    weights = {layers_renamed(name): weight.clone() for name, weight in model.state_dict().items()}
    weights["model.shared.weight"][config.pad_token_id] = 0.0  # otherwise MarianMT cannot start from zero
    table = sinusoidal_positions(torch.arange(positions), config.d_model, config.position_encoding)
    for stack in ("encoder", "decoder"):
        weights[f"model.{stack}.embed_tokens.weight"] = weights["model.shared.weight"]
        weights[f"model.{stack}.embed_positions.weight"] = table
    weights["lm_head.weight"] = weights["model.shared.weight"]
    weights["final_logits_bias"] = torch.zeros_like(marian.final_logits_bias)
    marian.load_state_dict(weights, strict=True)
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.layer_norm_eps
    return marian
