"""Registration of the model, its tokenizer and its pipeline with transformers, when the package is imported.

A user who has imported the package finds its model through transformers' own entry points, `AutoConfig`,
`AutoModelForSeq2SeqLM`, `AutoTokenizer` and `pipeline("translation")`. Models saved or pushed then include their code,
for users who have transformers only.
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
    # From here on `save_pretrained` copies the files with these classes, and what they import, beside the weights; not
    # the tokenizer's: it is saved as transformers' plain fast tokenizer, which loads without trust_remote_code.
    VaswaniConfig.register_for_auto_class("AutoConfig")
    VaswaniModel.register_for_auto_class("AutoModel")
    VaswaniForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
