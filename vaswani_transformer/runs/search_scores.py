"""Scoring for `recipes/score.py`: translations of a test set by one or several searches."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.cleaning import encode_corpus
from ..decoding.translation import best_translations
from ..evaluation.confidence import ConfidenceReport, measure_confidence
from ..evaluation.perplexity import Perplexity, perplexity
from ..evaluation.scores import bleu_by_source_length, paired_bootstrap, score_translations
from ..evaluation.test_sets import TestSet
from ..model.languages_vaswani import Directions
from ..model.scores_vaswani import TranslationScore
from ..model.target_tokenizer import encodes_targets
from .plots import plot_bleu_by_source_length, plot_confidence, plot_sweep
from .records import Provenance, ScoredTestSet, ScoreRecord, SearchScores


# What an evaluation may have beside `results.json`: the translations of the first and second system, and plots.
_FILES = ("translations.txt", "translations.compare.txt", "bleu_by_source_length.png", "sweep.png", "confidence.png")


@dataclass(frozen=True)
class Translations:
    """Translations of the test set by one search of a model, or from a file.

    Attributes:
        lines: The translations, without line ends.
        num_beams, length_penalty, seconds: Options of the search, and its duration; None for a file.
        scores: Log-probabilities, if they were asked for.
    """

    lines: list[str]
    num_beams: int | None = None
    length_penalty: float | None = None
    seconds: float | None = None
    scores: list[TranslationScore] | None = None

    def score(self, test_set: TestSet) -> SearchScores:
        scores = score_translations(self.lines, test_set.references, test_set.languages[1])
        return SearchScores(
            **vars(scores), num_beams=self.num_beams, length_penalty=self.length_penalty, seconds=self.seconds
        )


def languages_to_score(
    configs: Sequence[PreTrainedConfig], source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Languages to translate from and into: `source` and `target`, or else the first model's; None for an unknown one.

    Raises:
        ValueError: A model does not translate between them, or has several directions and `target` is None.
    """
    if configs:
        directions = Directions(configs[0])
        default_source, default_target = directions.languages(directions.tag(source, target, is_required=True))
        source, target = source or default_source, target or default_target
    for config in configs:
        Directions(config).tag(source, target)
    return source, target


def translate_test_set(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    num_beams: Sequence[int] | None,
    length_penalties: Sequence[float] | None,
    tokens_per_batch: int,
    return_scores: bool = False,
) -> list[Translations]:
    """Translate a test set with every number of beams and every alpha (6.1). Collective.

    None means the value in the model's generation_config. `return_scores` scores the translations, too.
    """
    default = model.generation_config
    beams = num_beams or [default.num_beams or 1]
    alphas = length_penalties or [1.0 if default.length_penalty is None else default.length_penalty]
    searches = []
    for number, alpha in itertools.product(beams, alphas):
        search: dict[str, Any] = {"num_beams": number, "length_penalty": alpha}
        search["target_language"] = test_set.languages[1]
        search["return_scores"] = return_scores
        started = time.perf_counter()
        translations = best_translations(model, tokenizer, test_set.sources, tokens_per_batch, **search)
        seconds = time.perf_counter() - started
        scores = [each.score for each in translations] if return_scores else None
        # One line each, so that the written file has the same scores.
        lines = [" ".join(each.text.splitlines()) for each in translations]
        searches.append(Translations(lines, number, alpha, seconds, scores))
    return searches


def reference_perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, test_set: TestSet
) -> Perplexity | None:
    """Perplexity of the first references; None if the tokenizer cannot encode them. Collective."""
    if not encodes_targets(tokenizer):
        return None
    source, target = test_set.languages
    pairs = zip(test_set.sources, test_set.references, strict=True)
    corpus = Dataset.from_list([{"translation": {source: text, target: texts[0]}} for text, texts in pairs])
    tag = Directions(model.config).tag(source, target)
    return perplexity(model, tokenizer, encode_corpus(corpus, tokenizer, source, target, source_tag=tag))


def score_systems(
    systems: Mapping[str, list[Translations]],
    perplexities: Mapping[str, Perplexity | None],
    test_set: TestSet,
    run: Provenance,
) -> tuple[ScoreRecord, dict[str, list[str]]]:
    """Score one or two systems.

    Args:
        systems: The translations by each search of a system, by the system's name.
        perplexities: Perplexity of the first references by the systems that are models.
        test_set: What was translated.
        run: Where the numbers come from.

    Returns:
        The record, and each system's translations by its best search, by the paper's BLEU.
    """
    source, target = test_set.languages
    scored, best, sweep = [], {}, None
    for name, searches in systems.items():
        rows = [search.score(test_set) for search in searches]
        sweep = rows if len(rows) > 1 else sweep
        # The paper's BLEU may be 0 for all searches in a language without spaces between words.
        highest = max(range(len(rows)), key=lambda row: (rows[row].paper_bleu.score, rows[row].sacrebleu.score))
        best[name] = lines = searches[highest].lines
        groups = None
        if test_set.sources is not None:
            groups = bleu_by_source_length(test_set.sources, lines, test_set.references, target)
        scored.append(replace(rows[highest], name=name, perplexity=perplexities.get(name), by_source_length=groups))
    comparison = None
    if len(best) > 1:
        first, second = best.values()
        comparison = paired_bootstrap(first, second, test_set.references, language=target)
    described = ScoredTestSet(
        name=test_set.name,
        lines=len(test_set.references),
        newstest2014=test_set.newstest2014,
        references=len(test_set.references[0]),
        source_language=source,
        target_language=target,
    )
    confidence = _confidence(next(iter(systems.values()))[0], test_set)
    record = ScoreRecord(
        run=run,
        test_set=described,
        systems=scored,
        sweep=sweep,
        paired_bootstrap=comparison,
        confidence=confidence,
    )
    return record, best


def _confidence(translations: Translations, test_set: TestSet) -> ConfidenceReport | None:
    """What the scores of translations say of their quality; None without scores."""
    if translations.scores is None:
        return None
    rows = [row for row, score in enumerate(translations.scores) if score.tokens]  # blank lines are not translated
    scores, lines = [translations.scores[row].mean for row in rows], [translations.lines[row] for row in rows]
    return measure_confidence(scores, lines, [test_set.references[row] for row in rows])


def write_scores(directory: Path, record: ScoreRecord, translations: dict[str, list[str]]) -> None:
    """Write `results.json`, plots and the models' translations, after deleting the files of an earlier evaluation."""
    for name in _FILES:
        (directory / name).unlink(missing_ok=True)
    for system, name in zip(record.systems, _FILES, strict=False):
        if system.num_beams is not None:
            text = "".join(line + "\n" for line in translations[system.name])
            (directory / name).write_text(text, encoding="utf-8")
    groups = {system.name: system.by_source_length for system in record.systems if system.by_source_length}
    if groups:
        plot_bleu_by_source_length(groups, directory / "bleu_by_source_length.png")
    if record.sweep:
        plot_sweep(record.sweep, directory / "sweep.png")
    if record.confidence:
        plot_confidence(record.confidence, directory / "confidence.png")
    record.save(directory / "results.json")
