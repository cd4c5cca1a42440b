"""Registration of a kind of model, and of its tokenizer, with transformers, when the package is imported.

A user who has imported the package finds its models through transformers' own entry points, such as
`AutoModelForSeq2SeqLM` and `AutoTokenizer`. Models saved or pushed then include their code, for users who have
transformers only.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .configuration_vaswani import VaswaniConfig
from .modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .tokenization_vaswani import VaswaniTokenizer


def register_classes(
    config: type[VaswaniConfig],
    model: type[VaswaniModel],
    generating_model: type[VaswaniForConditionalGeneration],
    tokenizer: type[VaswaniTokenizer],
) -> None:
    """Register the classes; calling it again changes nothing."""
    AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(config, model, exist_ok=True)
    AutoModelForSeq2SeqLM.register(config, generating_model, exist_ok=True)
    AutoTokenizer.register(config, fast_tokenizer_class=tokenizer, exist_ok=True)
    # From here on `save_pretrained` copies the files with these classes, and what they import, beside the weights; not
    # the tokenizer's: it is saved as transformers' plain fast tokenizer, which loads without trust_remote_code.
    config.register_for_auto_class("AutoConfig")
    model.register_for_auto_class("AutoModel")
    generating_model.register_for_auto_class("AutoModelForSeq2SeqLM")
