"""The model of "Attention Is All You Need", as a Hugging Face package.

Importing it makes the model known to transformers: `AutoModelForSeq2SeqLM.from_pretrained` and
`pipeline("translation")` then work with models trained here. Training code is imported when its name is first
used.
"""

from importlib import import_module
from typing import TYPE_CHECKING


__version__ = "0.2.0"

from .decoding.ensemble import Ensemble
from .decoding.phrases import ForcedPhrases
from .decoding.pipeline import VaswaniTranslationPipeline
from .model.configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.parsing_vaswani import VaswaniForConstituencyParsing, VaswaniParsingConfig, VaswaniParsingModel
from .model.tokenization_vaswani import VaswaniTokenizer
from .parsing.tokenizer import VaswaniParsingTokenizer
from .registration import register


if TYPE_CHECKING:
    from .options.training import VaswaniTrainingArguments
    from .training.averaging import CheckpointAveraging, average_checkpoints
    from .training.loss import LabelSmoothedLoss
    from .training.schedule import NoamSchedule, noam_learning_rate
    from .training.trainer import VaswaniTrainer

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

_TRAINING = {
    "CheckpointAveraging": "training.averaging",
    "LabelSmoothedLoss": "training.loss",
    "NoamSchedule": "training.schedule",
    "VaswaniTrainer": "training.trainer",
    "VaswaniTrainingArguments": "options.training",
    "average_checkpoints": "training.averaging",
    "noam_learning_rate": "training.schedule",
}


def __getattr__(name: str) -> object:
    """Import training code when its name is first used (PEP 562)."""
    if name not in _TRAINING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_TRAINING[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


register()
