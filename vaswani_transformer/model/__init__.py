"""Sections 3 and 4 of the paper, tokenization (5.1) and the search (6.1): what goes to the Hub with the weights.

transformers copies these files beside the weights one by one, so they import nothing but one another, torch,
transformers and tokenizers.
"""

from .configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
from .modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .pipeline_vaswani import VaswaniTranslationPipeline
from .tokenization_vaswani import VaswaniTokenizer


__all__ = [
    "PAPER_VARIANTS",
    "VaswaniConfig",
    "VaswaniForConditionalGeneration",
    "VaswaniModel",
    "VaswaniTokenizer",
    "VaswaniTranslationPipeline",
]
