"""FSMT (WMT19) of transformers, as a model of this package."""

from transformers import FSMTForConditionalGeneration

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .weights import model_from_transformers, weights_of


def from_fsmt(model: FSMTForConditionalGeneration) -> VaswaniForConditionalGeneration:
    """As `marian.from_marian`, for FSMT.

    Its vocabularies are separate, and its positions count from the padding's id + 1.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    first = model.config.pad_token_id + 1
    weights = weights_of(model, "sinusoidal_halves", first)
    converted = model_from_transformers(model, weights, position_encoding="sinusoidal_halves", position_offset=first)
    converted.config.source_language, converted.config.target_language = model.config.langs
    return converted
