"""BLEU of a model in training, on part of the validation corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding.translation import translate_corpus
from ..evaluation.scores import sacrebleu_score


@dataclass(frozen=True)
class ValidationBleu:
    """sacreBLEU of the translations of some sentences.

    Attributes:
        sources: Sentences to translate.
        references: Their reference translations, not tokenized.
        tokenizer: The model's.
        num_beams: Beams of the search (6.1); None for the model's generation_config.
        length_penalty: Alpha of the search; None for the model's generation_config.
    """

    sources: Sequence[str]
    references: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    num_beams: int | None = None
    length_penalty: float | None = None

    def __call__(self, model: PreTrainedModel) -> float:
        """BLEU of a model, from 0 to 100; as `translate`."""
        return sacrebleu_score(self.translate(model), self.references, model.config.target_language).score

    def translate(self, model: PreTrainedModel) -> list[str]:
        """Translate the sentences. Collective: the processes share them, and all return the same.

        Args:
            model: The model, on the device to use; it is left in evaluation mode.
        """
        asked = {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
        search: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        language = model.config.target_language
        return translate_corpus(
            model, self.tokenizer, self.sources, show_progress=False, target_language=language, **search
        )
