"""Conversion of models of transformers: MarianMT (OPUS-MT) and FSMT (WMT19)."""

from transformers import FSMTForConditionalGeneration, MarianMTModel

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .weights import model_from_transformers, weights_by_fairseq_names


def from_marian(model: MarianMTModel) -> VaswaniForConditionalGeneration:
    """Convert a MarianMT model to one with the same logits, and the same search in `generate`.

    The result is on the CPU, in the source's dtype; the source is not changed. Fields that its generation_config does
    not set get the defaults of transformers, with the length penalty `|Y|^alpha`.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    weights = weights_by_fairseq_names(model, "sinusoidal_marian", first=0)
    weights.pop("shared.weight", None)
    weights["decoder.output_projection.weight"] = weights.pop("lm_head.weight")
    bias = weights.pop("final_logits_bias").squeeze(0)  # [vocabulary]
    if bias.any():
        weights["decoder.output_projection.bias"] = bias
    return model_from_transformers(model, weights, position_encoding="sinusoidal_marian")


def from_fsmt(model: FSMTForConditionalGeneration) -> VaswaniForConditionalGeneration:
    """Convert an FSMT model like `from_marian`.

    Its source and target vocabularies are separate, and its positions count from `pad_token_id` + 1.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    first = model.config.pad_token_id + 1
    weights = weights_by_fairseq_names(model, "sinusoidal_halves", first)
    converted = model_from_transformers(model, weights, position_encoding="sinusoidal_halves", position_offset=first)
    converted.config.source_language, converted.config.target_language = model.config.langs
    return converted
