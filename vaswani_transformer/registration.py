"""What importing the package does to transformers, all of it.

Every entry here has the same reason: a user who has imported the package finds its model through transformers' own
entry points, `AutoConfig`, `AutoModelForSeq2SeqLM`, `AutoTokenizer` and `pipeline("translation")`.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .configuration_vaswani import VaswaniConfig
from .modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .pipeline_vaswani import install_translation_task
from .tokenization_vaswani import VaswaniTokenizer


def register() -> None:
    """Register the classes; calling it again changes nothing."""
    AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig, exist_ok=True)
    AutoModel.register(VaswaniConfig, VaswaniModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(VaswaniConfig, fast_tokenizer_class=VaswaniTokenizer, exist_ok=True)
    install_translation_task()
