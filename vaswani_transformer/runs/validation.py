"""Held-out corpora of a training: BLEU during the training, and the choice of the length penalty (6.1) by it."""

from collections.abc import Sequence

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.corpora import evenly_spaced, sentences
from ..data.prepared_directory import TrainingData
from ..evaluation.scores import paired_bootstrap, sacrebleu_score
from ..evaluation.test_sets import TestSet
from .scoring import beam_searches, translate_test_set


def held_out(data: TrainingData, split: str, languages: tuple[str, str], count: int | None = None) -> TestSet:
    """A held-out corpus of the training data as a test set; with a `count`, so many of its pairs, evenly spaced."""
    corpus = data.text[split]
    if count is not None:
        corpus = corpus.select(evenly_spaced(len(corpus), count))
    sources, references = (list(sentences(corpus, [language])) for language in languages)
    return TestSet(split, languages, sources, [[text] for text in references])


def validation_bleu(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sample: TestSet, num_beams: int | None = None
) -> float:
    """sacreBLEU of a model during its training, from 0 to 100; by default with its own number of beams. Collective.

    The model computes on its device, and is in evaluation mode afterwards.
    """
    (search,) = beam_searches(model, [num_beams] if num_beams else None)
    lines = translate_test_set(model, tokenizer, sample, search, show_progress=False).lines
    return sacrebleu_score(lines, sample.references, sample.languages[1]).score


def choose_length_penalty(model: PreTrainedModel, penalties: Sequence[float], data: TrainingData) -> float:
    """The first alpha (6.1), unless another has a significantly better BLEU on the validation set. Collective.

    Significant means p < 0.05 after multiplying by the number of the others (Bonferroni). A single alpha is not tested.
    """
    first = chosen = penalties[0]
    if len(penalties) == 1:
        return first
    test_set = held_out(data, "validation", (model.config.source_language, model.config.target_language))
    is_main = PartialState().is_main_process
    if is_main:
        alphas = ", ".join(f"{alpha:g}" for alpha in penalties)
        lines = len(test_set.references)
        print(f"translating {lines:,} validation sentences with each length_penalty: {alphas}", flush=True)
    translations, scores, language = {}, {}, test_set.languages[1]
    for search in beam_searches(model, length_penalties=penalties):
        alpha = search["length_penalty"]
        translations[alpha] = translate_test_set(model, data.tokenizer, test_set, search).lines
        scores[alpha] = sacrebleu_score(translations[alpha], test_set.references, language).score
        if is_main:
            print(f"length_penalty {alpha:g}: {scores[alpha]:.2f} validation BLEU", flush=True)
    best, comparison = max(scores, key=scores.__getitem__), ""
    if best != first:
        compared = paired_bootstrap(translations[first], translations[best], test_set.references, language=language)
        p_value = (len(penalties) - 1) * compared["BLEU"].two_sided_p_value
        chosen = best if p_value < 0.05 else first
        comparison = f"; {best:g} against {first:g}: p = {min(1.0, p_value):.3f}"
    if is_main:
        measured = ", ".join(f"{alpha:g}: {score:.2f}" for alpha, score in scores.items())
        print(f"length_penalty {chosen:g}; validation BLEU by length_penalty: {measured}{comparison}", flush=True)
    return chosen
