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


# transformers' Auto classes and `pipeline` then know parsers, as `model.registration` does it for translation.
AutoConfig.register(VaswaniParsingConfig.model_type, VaswaniParsingConfig, exist_ok=True)
AutoModel.register(VaswaniParsingConfig, VaswaniParsingModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VaswaniParsingConfig, VaswaniForConstituencyParsing, exist_ok=True)
AutoTokenizer.register(VaswaniParsingConfig, fast_tokenizer_class=VaswaniParsingTokenizer, exist_ok=True)
install_parsing_task()
