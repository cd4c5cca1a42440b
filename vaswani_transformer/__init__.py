"""The model of "Attention Is All You Need", as a Hugging Face package.

Importing it makes the model known to transformers: `AutoModelForSeq2SeqLM.from_pretrained` and
`pipeline("translation")` then work with what was trained here. It loads nothing else: what trains is imported when its
name is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .model.configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.parsing_vaswani import VaswaniForConstituencyParsing, VaswaniParsingConfig, VaswaniParsingModel
from .model.pipeline_vaswani import VaswaniTranslationPipeline, install_translation_task
from .model.registration import register
from .model.tokenization_vaswani import VaswaniTokenizer
from .parsing.tokenizer import VaswaniParsingTokenizer


if TYPE_CHECKING:
    from .model.ensemble import Ensemble
    from .model.phrases import ForcedPhrases
    from .training.arguments import VaswaniTrainingArguments
    from .training.averaging import CheckpointAveraging, average_checkpoints
    from .training.loss import LabelSmoothedLoss
    from .training.schedule import NoamSchedule, noam_learning_rate
    from .training.trainer import VaswaniTrainer


register(VaswaniConfig, VaswaniModel, VaswaniForConditionalGeneration, VaswaniTokenizer)
register(VaswaniParsingConfig, VaswaniParsingModel, VaswaniForConstituencyParsing, VaswaniParsingTokenizer)
install_translation_task()

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
    "CheckpointAveraging": "training.averaging",
    "Ensemble": "model.ensemble",
    "ForcedPhrases": "model.phrases",
    "LabelSmoothedLoss": "training.loss",
    "NoamSchedule": "training.schedule",
    "VaswaniTrainer": "training.trainer",
    "VaswaniTrainingArguments": "training.arguments",
    "average_checkpoints": "training.averaging",
    "noam_learning_rate": "training.schedule",
}


def __getattr__(name: str) -> object:
    """Import what trains, or few need, when its name is asked for (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
