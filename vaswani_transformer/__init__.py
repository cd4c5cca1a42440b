"""The model of "Attention Is All You Need", as a Hugging Face package.

Importing it makes the model known to transformers: `AutoModelForSeq2SeqLM.from_pretrained` and
`pipeline("translation")` then work with what was trained here. It loads nothing else: what trains is imported when its
name is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .model.configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
    from .model.ensemble import Ensemble
    from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
    from .model.parsing_vaswani import VaswaniForConstituencyParsing, VaswaniParsingConfig, VaswaniParsingModel
    from .model.phrases import ForcedPhrases
    from .model.pipeline_vaswani import VaswaniTranslationPipeline
    from .model.tokenization_vaswani import VaswaniTokenizer
    from .parsing.tokenizer import VaswaniParsingTokenizer
    from .training.arguments import VaswaniTrainingArguments
    from .training.averaging import CheckpointAveraging, average_checkpoints
    from .training.loss import LabelSmoothedLoss
    from .training.schedule import NoamSchedule, noam_learning_rate
    from .training.trainer import VaswaniTrainer

__version__ = "0.2.0"

__all__ = [
    "PAPER_VARIANTS",
    "CheckpointAveraging",
    "Ensemble",
    "ForcedPhrases",
    "LabelSmoothedLoss",
    "NoamSchedule",
    "VaswaniConfig",
    "VaswaniForConditionalGeneration",
    "VaswaniForConstituencyParsing",
    "VaswaniModel",
    "VaswaniParsingConfig",
    "VaswaniParsingModel",
    "VaswaniParsingTokenizer",
    "VaswaniTokenizer",
    "VaswaniTrainer",
    "VaswaniTrainingArguments",
    "VaswaniTranslationPipeline",
    "average_checkpoints",
    "noam_learning_rate",
]

_MODULES = {
    "PAPER_VARIANTS": "model.configuration_vaswani",
    "CheckpointAveraging": "training.averaging",
    "Ensemble": "model.ensemble",
    "ForcedPhrases": "model.phrases",
    "LabelSmoothedLoss": "training.loss",
    "NoamSchedule": "training.schedule",
    "VaswaniConfig": "model.configuration_vaswani",
    "VaswaniForConditionalGeneration": "model.modeling_vaswani",
    "VaswaniForConstituencyParsing": "model.parsing_vaswani",
    "VaswaniModel": "model.modeling_vaswani",
    "VaswaniParsingConfig": "model.parsing_vaswani",
    "VaswaniParsingModel": "model.parsing_vaswani",
    "VaswaniParsingTokenizer": "parsing.tokenizer",
    "VaswaniTokenizer": "model.tokenization_vaswani",
    "VaswaniTrainer": "training.trainer",
    "VaswaniTrainingArguments": "training.arguments",
    "VaswaniTranslationPipeline": "model.pipeline_vaswani",
    "average_checkpoints": "training.averaging",
    "noam_learning_rate": "training.schedule",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def register() -> None:
    """Make the models, their tokenizers and the pipeline known to transformers; calling it again changes nothing."""
    from .model import configuration_vaswani, modeling_vaswani, parsing_vaswani, tokenization_vaswani
    from .model.pipeline_vaswani import install_translation_task
    from .model.registration import register_classes
    from .parsing.tokenizer import VaswaniParsingTokenizer

    register_classes(
        configuration_vaswani.VaswaniConfig,
        modeling_vaswani.VaswaniModel,
        modeling_vaswani.VaswaniForConditionalGeneration,
        tokenization_vaswani.VaswaniTokenizer,
    )
    register_classes(
        parsing_vaswani.VaswaniParsingConfig,
        parsing_vaswani.VaswaniParsingModel,
        parsing_vaswani.VaswaniForConstituencyParsing,
        VaswaniParsingTokenizer,
    )
    install_translation_task()


register()
