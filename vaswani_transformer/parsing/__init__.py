"""Section 6.3 of the paper: English constituency parsing.

The model and its pipeline are `model/parsing_vaswani.py` and `model/parse_sequence_vaswani.py`, which go to the Hub.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from ..model.parsing_vaswani import (
    VaswaniForConstituencyParsing,
    VaswaniParsingConfig,
    VaswaniParsingModel,
    install_parsing_task,
)
from .tokenizer import VaswaniParsingTokenizer


def register_parser() -> None:
    """Make parsers known to transformers' Auto classes and `pipeline`, as `model.registration` does for translation."""
    AutoConfig.register(VaswaniParsingConfig.model_type, VaswaniParsingConfig, exist_ok=True)
    AutoModel.register(VaswaniParsingConfig, VaswaniParsingModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VaswaniParsingConfig, VaswaniForConstituencyParsing, exist_ok=True)
    AutoTokenizer.register(VaswaniParsingConfig, fast_tokenizer_class=VaswaniParsingTokenizer, exist_ok=True)
    install_parsing_task()
