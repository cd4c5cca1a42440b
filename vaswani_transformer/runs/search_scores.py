"""Scores of one or two systems on a test set: `recipes/score.py`."""

from collections.abc import Mapping
from dataclasses import replace

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.cleaning import encode_corpus
from ..evaluation.confidence import ConfidenceReport, measure_confidence
from ..evaluation.pathologies import find_pathologies
from ..evaluation.perplexity import Perplexity, perplexity
from ..evaluation.scores import bleu_by_source_length, paired_bootstrap, score_translations
from ..evaluation.test_sets import TestSet
from ..model.languages_vaswani import Directions
from ..model.tokenization_vaswani import encodes_targets
from .records import Provenance, ScoredTestSet, ScoreRecord, SearchScores
from .test_set_translations import Translations


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
    """Score one or two systems, by name, given the translations by their searches and the perplexities of models.

    Returns:
        The record, and each system's translations by its best search according to the paper's BLEU.
    """
    source, target = test_set.languages
    scores = {name: [_score(each, test_set) for each in searches] for name, searches in systems.items()}
    scored, best = [], {}
    for name, rows in scores.items():
        # In a language without spaces between words, the paper's BLEU may be 0 for all searches.
        highest = max(range(len(rows)), key=lambda row: (rows[row].paper_bleu.score, rows[row].sacrebleu.score))
        best[name] = lines = systems[name][highest].lines
        chosen = replace(rows[highest], name=name, perplexity=perplexities.get(name))
        if test_set.sources is not None:
            chosen = replace(
                chosen,
                by_source_length=bleu_by_source_length(test_set.sources, lines, test_set.references, target),
                pathologies=find_pathologies(test_set.sources, lines, test_set.references, test_set.languages),
            )
        scored.append(chosen)
    comparison = None
    if len(best) > 1:
        first, second = best.values()
        comparison = paired_bootstrap(first, second, test_set.references, language=target)
    record = ScoreRecord(
        run=run,
        test_set=ScoredTestSet(
            name=test_set.name,
            lines=len(test_set.references),
            newstest2014=test_set.newstest2014,
            references=len(test_set.references[0]),
            source_language=source,
            target_language=target,
        ),
        systems=scored,
        sweep=next((rows for rows in scores.values() if len(rows) > 1), None),
        paired_bootstrap=comparison,
        confidence=_confidence(next(iter(systems.values()))[0], test_set),
    )
    return record, best


def _score(translations: Translations, test_set: TestSet) -> SearchScores:
    return SearchScores(
        **vars(score_translations(translations.lines, test_set.references, test_set.languages[1])),
        num_beams=translations.num_beams,
        length_penalty=translations.length_penalty,
        seconds=translations.seconds,
    )


def _confidence(translations: Translations, test_set: TestSet) -> ConfidenceReport | None:
    """Measure the confidence of translations from their scores; None without scores."""
    if translations.scores is None:
        return None
    rows = [row for row, score in enumerate(translations.scores) if score.tokens]  # blank lines are not translated
    scores, lines = [translations.scores[row] for row in rows], [translations.lines[row] for row in rows]
    references = [test_set.references[row] for row in rows]
    return measure_confidence([score.mean for score in scores], lines, references, [score.tokens for score in scores])
