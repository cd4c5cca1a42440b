"""The model of "Attention Is All You Need", as a Hugging Face package.

Importing it makes the model known to transformers: `AutoModelForSeq2SeqLM.from_pretrained` and
`pipeline("translation")` then work with what was trained here.
"""

from .model.configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .model.pipeline_vaswani import VaswaniTranslationPipeline
from .model.tokenization_vaswani import VaswaniTokenizer
from .registration import register
from .training import (
    CheckpointAveraging,
    LabelSmoothedLoss,
    NoamSchedule,
    VaswaniTrainer,
    VaswaniTrainingArguments,
    average_checkpoints,
    noam_learning_rate,
)


register()

__version__ = "0.1.0"

__all__ = [
    "PAPER_VARIANTS",
    "CheckpointAveraging",
    "LabelSmoothedLoss",
    "NoamSchedule",
    "VaswaniConfig",
    "VaswaniForConditionalGeneration",
    "VaswaniModel",
    "VaswaniTokenizer",
    "VaswaniTrainer",
    "VaswaniTrainingArguments",
    "VaswaniTranslationPipeline",
    "average_checkpoints",
    "noam_learning_rate",
]
