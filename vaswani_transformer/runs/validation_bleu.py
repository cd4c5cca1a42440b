"""BLEU of a model in training, on part of the validation corpus."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding.translation import translate_corpus
from ..evaluation.scores import sacrebleu_score


# Sentences that each process translates between two checks for signals.
_SENTENCES_A_ROUND = 32


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

    def __call__(self, model: PreTrainedModel, after_round: Callable[[], object] = lambda: None) -> float:
        """BLEU of a model, from 0 to 100; as `translate`."""
        return sacrebleu_score(self.translate(model, after_round), self.references, model.config.target_language).score

    def translate(self, model: PreTrainedModel, after_round: Callable[[], object] = lambda: None) -> list[str]:
        """Translate the sentences. Collective: the processes share them, and all return the same.

        Args:
            model: The model, on the device to use; it is left in evaluation mode.
            after_round: Called on all processes after each has translated some sentences.
        """
        asked = {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
        search: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        order = sorted(range(len(self.sources)), key=lambda index: -len(self.sources[index]))
        size = _SENTENCES_A_ROUND * PartialState().num_processes
        translations: dict[int, str] = {}
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            texts = [self.sources[index] for index in indices]
            into = model.config.target_language
            found = translate_corpus(model, self.tokenizer, texts, show_progress=False, target_language=into, **search)
            translations.update(zip(indices, found, strict=True))
            after_round()
        return [translations[index] for index in range(len(order))]
