"""Log-probabilities of given translations, from one pass of the decoder: of the whole, and of each word."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .beam_search_vaswani import length_penalty


# Logits computed at once: 200 MB in float32.
_LOGITS_AT_ONCE = 50_000_000


@dataclass(frozen=True)
class TranslationScore:
    """How probable a model finds a translation, given its source. Logarithms are natural.

    Attributes:
        log_probability: Of all tokens, the EOS included.
        score: `log_probability` divided by the length penalty (6.1), by which beam search ranks translations.
        tokens: Number of tokens, the EOS included.
        word_log_probabilities: Of each word of the translation, as white space divides it. The EOS belongs to none.
        confidence: The chrF to expect of it, from 0 to 100, by the model's `confidence_curve`; None without one.
    """

    log_probability: float
    score: float
    tokens: int
    word_log_probabilities: list[float]
    confidence: float | None = None

    @property
    def mean(self) -> float:
        """Log-probability a token."""
        return self.log_probability / max(self.tokens, 1)

    def record(self, digits: int | None = None) -> dict[str, float | list[float]]:
        """Its fields by name, without a confidence that is unknown; `digits` rounds them, for files."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        if digits is None:
            return fields
        return {
            name: [round(each, digits) for each in value] if isinstance(value, list) else round(value, digits)
            for name, value in fields.items()
        }


def score_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, torch.Tensor],
    output_ids: torch.Tensor,
    alpha: float,
    penalty_type: str,
) -> list[TranslationScore]:
    """Score translations of a batch, as the model predicts them: without logits processors and sampling.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        inputs: Arguments of the encoder, `[batch, source]` each.
        output_ids: `[batch * translations, 1 + target]`, the translations of each source in turn, as `generate` returns
            them: after the start token, up to the EOS or the length limit, then padding.
        alpha: Exponent of the length penalty.
        penalty_type: Its formula; see `length_penalty`.
    """
    found, curve = [], getattr(model.config, "confidence_curve", None)
    log_probabilities = token_log_probabilities(model, inputs, output_ids)
    for ids, values in zip(output_ids[:, 1:].tolist(), log_probabilities.tolist(), strict=True):
        length = _length(ids, tokenizer.eos_token_id, tokenizer.pad_token_id)
        total, penalty = sum(values[:length]), float(length_penalty(length, alpha, penalty_type))
        words = _sum_over_words(tokenizer, ids[: length - ids[:length].count(tokenizer.eos_token_id)], values)
        confidence = None if curve is None else _interpolate(curve, total / max(length, 1))
        found.append(TranslationScore(total, total / penalty, length, words, confidence))
    return found


@torch.no_grad()
def token_log_probabilities(
    model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], output_ids: torch.Tensor
) -> torch.Tensor:
    """The log-probability of each token but the first, given the source and the tokens before it, in float32.

    Args:
        model: The model, in evaluation mode.
        inputs: Arguments of the encoder, `[batch, source]` each.
        output_ids: `[batch * translations, 1 + target]`, the translations of each source in turn.

    Returns:
        `[batch * translations, target]`; values after the EOS have no meaning.
    """
    translations = len(output_ids) // len(inputs["input_ids"])
    states = model.get_encoder()(**inputs)[0].repeat_interleave(translations, 0)  # [rows, source, d_model]
    mask = inputs["attention_mask"].repeat_interleave(translations, 0)  # [rows, source]
    vocabulary = model.get_output_embeddings().weight.shape[0]
    found = []
    for rows in torch.arange(len(output_ids)).split(max(1, _LOGITS_AT_ONCE // (vocabulary * output_ids.shape[1]))):
        given, predicted = output_ids[rows, :-1], output_ids[rows, 1:]  # [rows, target]
        logits = model(
            encoder_outputs=(states[rows],), attention_mask=mask[rows], decoder_input_ids=given, use_cache=False
        ).logits  # [rows, target, vocabulary]
        found.append(logits.float().log_softmax(-1).gather(-1, predicted.unsqueeze(-1)).squeeze(-1))
    return torch.cat(found)


def _length(ids: Sequence[int], eos: int, padding: int) -> int:
    """Number of tokens up to the EOS, included; without one, as the length limit cuts it off, up to the padding."""
    if eos in ids:
        return ids.index(eos) + 1
    return max((place + 1 for place, token in enumerate(ids) if token != padding), default=0)


def _sum_over_words(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], values: Sequence[float]) -> list[float]:
    """Sums of the tokens' `values`, one for each word of the text as white space divides it."""
    prefixes = tokenizer.batch_decode([ids[:stop] for stop in range(1, len(ids) + 1)], skip_special_tokens=True)
    sums = [0.0] * len(prefixes[-1].split() if prefixes else [])
    for prefix, value in zip(prefixes if sums else [], values, strict=False):
        # White space alone belongs to the word that follows it, as does the space at the start of a word's token.
        place = len(prefix.split()) - (not prefix[-1:].isspace())
        sums[min(max(place, 0), len(sums) - 1)] += value
    return sums


def _interpolate(curve: Sequence[Sequence[float]], value: float) -> float:
    """The height at a value, by points of value and height; linear between them, constant outside."""
    place = bisect([point[0] for point in curve], value)
    if place in (0, len(curve)):
        return curve[min(place, len(curve) - 1)][1]
    (left, low), (right, high) = curve[place - 1], curve[place]
    return low + (high - low) * (value - left) / (right - left)
