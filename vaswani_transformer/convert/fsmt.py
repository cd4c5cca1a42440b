"""Conversion of FSMT (WMT19) models of transformers."""

from transformers import FSMTForConditionalGeneration

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .weights import model_from_transformers, weights_by_fairseq_names


def from_fsmt(model: FSMTForConditionalGeneration) -> VaswaniForConditionalGeneration:
    """Convert an FSMT model like `marian.from_marian`.

    Its source and target vocabularies are separate, and its positions count from `pad_token_id` + 1.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    first = model.config.pad_token_id + 1
    weights = weights_by_fairseq_names(model, "sinusoidal_halves", first)
    converted = model_from_transformers(model, weights, position_encoding="sinusoidal_halves", position_offset=first)
    converted.config.source_language, converted.config.target_language = model.config.langs
    return converted
