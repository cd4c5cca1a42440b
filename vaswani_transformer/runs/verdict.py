"""Verdict on a training: how good its model is, what went wrong, and what to do next."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..evaluation.scores import Scores
from ..model.languages_vaswani import writes_spaces
from .records import RunRecord


# Limits beyond which a fact is remarkable. Losses are in nats per sub-word, shares in percent of the translations.
_RISE = 0.3  # of the loss above its minimum
_OVERFITTING = 0.5  # loss on held-out text above the training's
_WORTHWHILE_GAIN = 0.03  # of the loss, in twice the time
_WRONG_LANGUAGE = 50.0
_COMMON_ERROR = 5.0
_SUB_WORDS_PER_WORD = 2.5
_OCCURRENCES = 20  # of an entry of the vocabulary in the corpus, on average
_PARAMETERS_PER_TOKEN = 50
_FEW_SENTENCES = 30

_ERRORS = {
    "blank": "are blank",
    "repeated": "repeat a phrase",
    "truncated": "are truncated",
    "numbers differ": "have other numbers",
}


@dataclass(frozen=True)
class Finding:
    """A sentence on a training, and what to do about it."""

    text: str
    advice: str | None = None


def judge(record: RunRecord) -> list[Finding]:
    """Judge a training by its record: remarkable facts, the most serious first, then strengths and weaknesses."""
    checks = (_sides, _learning, _quality, _vocabulary, _model_size, _length, _strengths)
    return [finding for check in checks for finding in check(record)]


def next_step(record: RunRecord, findings: Sequence[Finding], directory: str) -> str:
    """The next step after a training into a directory, mostly a command."""
    source, target = record.data.source_language, record.data.target_language
    translate = f"vaswani translate --model {directory} --input text.{source} --output text.{target}"
    return next((each.advice for each in findings if each.advice), translate)


def _scored(record: RunRecord) -> tuple[str, Scores | None, Scores | None]:
    """The held-out set of the verdict; the scores of the model there, and of a copy of the source."""
    if record.test:
        return "test", record.test, record.test_copy
    return "validation", record.validation, record.validation_copy


def _sides(record: RunRecord) -> Iterator[Finding]:
    """Are the two sides of the corpora what their names say?"""
    split, scores, copy = _scored(record)
    compare = "compare the first lines of the files of both languages, of the training and of the held-out sets"
    if copy and copy.bleu.score > 60:
        text = f"The two sides of the {split} set are nearly equal: a copy has {copy.bleu.score:.2f} sacreBLEU."
        yield Finding(text, compare)
    if not (scores and scores.pathologies):
        return
    shares = scores.pathologies.shares
    if (copied := shares.get("copied", 0)) > _WRONG_LANGUAGE:
        text = "copy the source: the training's targets may be its sources."
        yield Finding(f"{copied:.1f} % of the translations {text}", compare)
    elif (untranslated := shares.get("source language", 0)) > _WRONG_LANGUAGE:
        text = "are in the language of the source: the training's files may be swapped."
        yield Finding(f"{untranslated:.1f} % of the translations {text}", compare)
    if not scores.pathologies.knows_lengths:
        text = f"The sources of the {split} set do not predict the lengths of its references."
        yield Finding(text, f"check that line n of one file of the {split} set translates line n of the other")


def _learning(record: RunRecord) -> Iterator[Finding]:
    """Did the loss fall, and as much on text that was held out?"""
    losses, settings = record.training.loss_by_tenth, record.settings
    if losses is None:
        return
    rate = "learning_rate_factor" if settings.lr_scheduler_type == "inverse_sqrt" else "learning_rate"
    slower = _repeat(f"--{rate} {getattr(settings, rate) / 2:g}")
    if losses[-1] > min(losses) + _RISE:
        yield Finding(f"The training diverged: its loss rose from {min(losses):.2f} to {losses[-1]:.2f}.", slower)
    elif not record.parent and losses[-1] > max(0.85 * losses[0], 0.5 * math.log(record.model.vocab_size)):
        yield Finding(f"The model hardly learned: its loss fell from {losses[0]:.2f} to {losses[-1]:.2f} only.", slower)
    elif (held_out := _held_out_loss(record)) is not None and held_out > losses[-1] + _OVERFITTING:
        epochs, pairs = record.training.epochs, record.data.cleaning["kept"]
        trained, unseen = (f"{math.exp(loss):.2f}" for loss in (losses[-1], held_out))
        if epochs < 3:
            cause = "these are another kind of text, in another language, or not translations of each other"
            advice = "compare some lines of the training's files with the held-out ones"
        else:
            cause = f"in {epochs:.1f} passes the model learned {pairs:,} pairs by heart"
            advice = "train on more text; see recipes/better_models.md for text of one language"
        text = f"The perplexity is {trained} on the training's pairs and {unseen} on held-out ones: {cause}."
        yield Finding(text, advice)


def _held_out_loss(record: RunRecord) -> float | None:
    """Mean loss on the validation set, or on the test set without one, over the directions; None if not measured."""
    directions = [record.validation, record.validation_reverse]
    if record.validation is None:
        directions = [record.test, record.test_reverse]
    losses = [each.perplexity.nats_per_token for each in directions if each and each.perplexity]
    return sum(losses) / len(losses) if losses else None


def _quality(record: RunRecord) -> Iterator[Finding]:
    """Is the model better than a copy of the source, and which errors are common?"""
    split, scores, copy = _scored(record)
    if scores and copy:
        measures = {"sacreBLEU": (scores.bleu.score, copy.bleu.score), "chrF": (scores.chrf.score, copy.chrf.score)}
        worse = [name for name, (ours, its) in measures.items() if ours <= its]
        comparison = "Better than a copy of the source"
        if worse:
            comparison = f"No better than a copy of the source by {' and '.join(worse)}"
        values = f"{scores.bleu.score:.2f} sacreBLEU and {scores.chrf.score:.2f} chrF"
        text = f"{comparison} on the {split} set: {values}; a copy has {copy.bleu.score:.2f} and {copy.chrf.score:.2f}."
        yield Finding(text, _longer(record) if worse else None)
    if scores and scores.pathologies:
        shares = scores.pathologies.shares
        common = [f"{shares[kind]:.1f} % {do}" for kind, do in _ERRORS.items() if shares.get(kind, 0) > _COMMON_ERROR]
        if common:
            yield Finding(f"Of the model's translations, {', '.join(common)}.", _longer(record))


def _vocabulary(record: RunRecord) -> Iterator[Finding]:
    """Does the corpus support the size of the vocabulary, if this training learned it?"""
    if record.parent or record.data.others.get("tokenizer"):
        return
    _, scores, _ = _scored(record)
    size, times = record.model.vocab_size, 2 * _corpus_tokens(record) / record.model.vocab_size
    if times < _OCCURRENCES:
        text = (
            f"The vocabulary of {size:,} entries is too large for the corpus, where an entry occurs {times:.1f} times"
        )
        yield Finding(f"{text} on average.", _repeat("--min_frequency 10"))
    elif scores and scores.perplexity and writes_spaces(record.data.target_language):
        sub_words = (scores.perplexity.tokens - scores.sentences) / scores.bleu.reference_length
        if sub_words > _SUB_WORDS_PER_WORD:
            text = f"it divides a word into {sub_words:.1f} sub-words on average."
            yield Finding(f"The vocabulary of {size:,} is small: {text}", _repeat(f"--vocab_size {4 * size}"))


def _model_size(record: RunRecord) -> Iterator[Finding]:
    """Does the corpus support the size of the model? Fine-tuning takes it from its parent."""
    parameters, tokens = record.model.parameters, _corpus_tokens(record)
    if not record.parent and parameters / tokens > _PARAMETERS_PER_TOKEN:
        text = f"The model is large for its corpus: {parameters:,} parameters, {tokens:,.0f} target tokens."
        yield Finding(text, "train a smaller model, as with --config small, or on more text")


def _corpus_tokens(record: RunRecord) -> float:
    """Target tokens of an epoch."""
    return record.training.target_tokens / record.training.epochs


def _length(record: RunRecord) -> Iterator[Finding]:
    """Would a longer training help?"""
    if record.training.epochs < 1:
        text = f"The training saw only part of the corpus: {record.training.epochs:.2f} passes."
        yield Finding(text, _longer(record))
        return
    losses = record.training.loss_by_tenth
    if losses is None or any(_learning(record)):
        return
    # Twice the time has about half the effect each time. Between a quarter and half of the training, the learning rate
    # explains less of the effect than at the end, where a cooldown lowers it to zero.
    gain = max(0.0, (losses[2] - (losses[4] + losses[5]) / 2) / 4)
    is_worth = gain > _WORTHWHILE_GAIN
    text = "The model was still improving" if is_worth else "The model has nearly converged"
    text += f": its loss changed from {losses[-2]:.2f} to {losses[-1]:.2f} in the last tenth."
    text += f" In twice the time, the perplexity would be about {1 - math.exp(-gain):.0%} lower"
    yield Finding(f"{text}: {_longer(record)}." if is_worth else f"{text}.")


def _longer(record: RunRecord) -> str:
    """How to train twice as long: by doubling the limits that ended the training."""
    limits = record.training.limits or {"max_steps": record.training.steps}  # earlier records
    doubled = " ".join(f"--{name} {2 * limit:.15g}" for name, limit in limits.items())
    if record.settings.others.get("cooldown"):  # the rate is zero, and a resumed training must keep its length
        return _repeat(doubled)
    return f"repeat the command with --resume {doubled}"


def _repeat(options: str) -> str:
    return f"repeat the command with {options} and another --output_dir"


def _strengths(record: RunRecord) -> Iterator[Finding]:
    """Inputs that the model translates well and badly, by its scores on the test set."""
    bad = []
    groups = [each for each in (record.test and record.test.by_source_length) or [] if each.sentences >= _FEW_SENTENCES]
    groups.sort(key=lambda group: group.sacrebleu)
    if groups and groups[0].sacrebleu < 0.85 * groups[-1].sacrebleu:
        worst, best = groups[0], groups[-1]
        scores = f"{worst.sacrebleu:.2f} sacreBLEU, against {best.sacrebleu:.2f} for {best} words"
        bad.append(f"sentences of {worst} words ({scores})")
    if record.robustness:
        losses = {name: each.plain_chrf - each.chrf for name, each in record.robustness.changes.items()}
        harmful = sorted((name for name in losses if losses[name] > 5), key=losses.__getitem__, reverse=True)
        bad += [f"{name} (-{losses[name]:.1f} chrF)" for name in harmful[:3]]
        shares = {kind: each.copied / each.lines for kind, each in record.robustness.strings.items()}
        copied = [f"{kind} ({share:.1%})" for kind, share in shares.items() if share >= 0.9]
        lost = [f"{kind} ({share:.1%})" for kind, share in shares.items() if share < 0.7]
        if copied:
            yield Finding(f"Good at: copying {', '.join(copied)}.")
        if lost:
            bad.append("copying " + ", ".join(lost))
    if bad:
        yield Finding(f"Bad at: {', '.join(bad)}.")
