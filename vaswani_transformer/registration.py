"""Registration of the models, their tokenizers and the pipeline with transformers, when the package is imported.

Importing the package makes its models available through transformers' own entry points, such as
`AutoModelForSeq2SeqLM` and `AutoTokenizer`. Models saved or pushed afterwards include their code, for users who have
transformers only.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .decoding.pipeline import VaswaniTranslationPipeline
from .model.configuration_vaswani import VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.parsing_vaswani import VaswaniForConstituencyParsing, VaswaniParsingConfig, VaswaniParsingModel
from .model.pipeline_vaswani import install_translation_task
from .model.tokenization_vaswani import VaswaniTokenizer
from .parsing.tokenizer import VaswaniParsingTokenizer


def register() -> None:
    """Make the models, their tokenizers and the pipeline known to transformers; calling it again changes nothing."""
    for config, model, generating_model, tokenizer in (
        (VaswaniConfig, VaswaniModel, VaswaniForConditionalGeneration, VaswaniTokenizer),
        (VaswaniParsingConfig, VaswaniParsingModel, VaswaniForConstituencyParsing, VaswaniParsingTokenizer),
    ):
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, model, exist_ok=True)
        AutoModelForSeq2SeqLM.register(config, generating_model, exist_ok=True)
        AutoTokenizer.register(config, fast_tokenizer_class=tokenizer, exist_ok=True)
        # From here on `save_pretrained` copies the files of these classes, and the files that they import, along with
        # the weights; but not the tokenizer's: it is saved as a plain fast tokenizer, which loads without
        # trust_remote_code.
        config.register_for_auto_class("AutoConfig")
        model.register_for_auto_class("AutoModel")
        generating_model.register_for_auto_class("AutoModelForSeq2SeqLM")
    install_translation_task(VaswaniTranslationPipeline)
