"""Sections 3 and 4 of the paper, tokenization (5.1) and the search (6.1): the code that goes to the Hub.

transformers copies these files beside the weights, so that the model loads without this package. It follows an import
only if it is `from .name import ...`. The files import nothing but one another, torch, transformers and tokenizers.
`tokenization_vaswani.py` is not copied: a saved tokenizer loads as transformers' own fast tokenizer.
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
