"""Translations of a test set by searches of a model, or from a file."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..decoding.translation import best_translations
from ..evaluation.test_sets import TestSet
from ..model.scores_vaswani import TranslationScore


@dataclass(frozen=True)
class Translations:
    """Translations of the test set by one search of a model, or from a file.

    Attributes:
        lines: The translations, without line ends.
        num_beams, length_penalty, seconds: Options of the search, and its duration; None for a file.
        scores: Log-probabilities, if requested.
    """

    lines: list[str]
    num_beams: int | None = None
    length_penalty: float | None = None
    seconds: float | None = None
    scores: list[TranslationScore] | None = None


def search_grid(
    default: GenerationConfig, num_beams: Sequence[int] | None, length_penalties: Sequence[float] | None
) -> list[dict[str, Any]]:
    """Options of the searches with each number of beams and each alpha (6.1); None means the model's default."""
    beams = num_beams or [default.num_beams or 1]
    alphas = length_penalties or [1.0 if default.length_penalty is None else default.length_penalty]
    return [{"num_beams": number, "length_penalty": alpha} for number in beams for alpha in alphas]


def translate_test_set(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    search: dict[str, Any],
    tokens_per_batch: int,
    return_scores: bool = False,
) -> Translations:
    """Translate a test set by one search of `search_grid`; `return_scores` also scores it. Collective."""
    keywords = {**search, "target_language": test_set.languages[1], "return_scores": return_scores}
    started = time.perf_counter()
    translations = best_translations(model, tokenizer, test_set.sources, tokens_per_batch, **keywords)
    seconds = time.perf_counter() - started
    scores = [each.score for each in translations] if return_scores else None
    # One line each, so that the written file has the same scores.
    lines = [" ".join(each.text.splitlines()) for each in translations]
    return Translations(lines, **search, seconds=seconds, scores=scores)
