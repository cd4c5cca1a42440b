"""The model of "Attention Is All You Need", as a Hugging Face package.

Importing it makes the model known to transformers: `AutoModelForSeq2SeqLM.from_pretrained` and
`pipeline("translation")` then work with models trained here. Training code is imported when its name is first
used.
"""

from importlib import import_module
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .decoding.ensemble import Ensemble
    from .decoding.phrases import ForcedPhrases
    from .decoding.pipeline import VaswaniTranslationPipeline
    from .model.configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
    from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
    from .model.parsing_vaswani import VaswaniForConstituencyParsing, VaswaniParsingConfig, VaswaniParsingModel
    from .model.tokenization_vaswani import VaswaniTokenizer
    from .options.training import VaswaniTrainingArguments
    from .parsing.tokenizer import VaswaniParsingTokenizer
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
    "Ensemble": "decoding.ensemble",
    "ForcedPhrases": "decoding.phrases",
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
    "VaswaniTrainingArguments": "options.training",
    "VaswaniTranslationPipeline": "decoding.pipeline",
    "average_checkpoints": "training.averaging",
    "noam_learning_rate": "training.schedule",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


from .registration import register  # noqa: E402 - the package's rooms read its version


register()
