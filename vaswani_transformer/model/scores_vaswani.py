"""Log-probabilities and word alignments of given translations, from one pass of the decoder."""

import copy
import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from transformers import FSMTTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .beam_search_vaswani import length_penalty
from .languages_vaswani import UNSPACED_CHARACTER


# Target tokens whose logits are computed at once: 300 MB in float32 for the paper's vocabulary.
_TOKENS_AT_ONCE = 2048

ScoreField = float | str | list[float] | list[str] | list[tuple[int, int]] | None


def alignment_heads(model: PreTrainedModel) -> list[list[int]]:
    """Layer and head, from 0, of the encoder-decoder attentions whose mean aligns words.

    The configuration names them; by default they are all heads of the last layer.

    Raises:
        ValueError: The model has separate vocabularies, or is of a type such as T5; or it lacks heads that its
            configuration names.
    """
    config = model.config
    has_two = getattr(config, "target_vocab_size", None) or config.model_type == "fsmt"
    if has_two or not getattr(config, "share_encoder_decoder_embeddings", True):
        raise ValueError("alignment: the model has two vocabularies, and its tokenizer decodes one of them only")
    if not hasattr(config, "decoder_layers"):
        raise ValueError(f"alignment: models of the type {config.model_type} are not supported")
    layers, heads = config.decoder_layers, config.decoder_attention_heads
    present = [[layer, head] for layer in range(layers) for head in range(heads)]
    if (named := getattr(config, "alignment_heads", None)) is None:
        return present[-heads:]
    if not named or any(pair not in present for pair in named):
        raise ValueError(
            f"alignment_heads: must be [layer, head] pairs, counted from 0, of {layers} layers with {heads} heads; "
            f"config.json has {named}"
        )
    return named


@dataclass(frozen=True)
class TranslationScore:
    """The probability of a translation given its source, by a model. Logarithms are natural.

    Attributes:
        log_probability: Sum over all tokens, EOS included.
        score: `log_probability` divided by the length penalty (6.1), both without forced tokens. Beam search ranks
            translations by it, unless logits processors change the probabilities.
        tokens: Number of tokens, EOS included.
        words: The words of the translation, divided as by `token_words`.
        word_log_probabilities: Sum for each word. Special tokens, such as EOS, belong to none.
        confidence: Expected chrF, from 0 to 100, by the model's `confidence_curve`. It was measured for the best
            translation by the search that `confidence_search` records, for log-probabilities per token within the
            curve, and for numbers of tokens within `confidence_tokens`; None otherwise. An engine's search counts as
            the model's.
        alignment: For each word of the translation, a link to the source word that it most likely translates: the
            indices of both, `(source, target)`, from 0; None if not requested.
        source_words: The words of the source, for the alignment.
    """

    log_probability: float
    score: float
    tokens: int
    words: list[str]
    word_log_probabilities: list[float]
    confidence: float | None = None
    alignment: list[tuple[int, int]] | None = None
    source_words: list[str] | None = None

    @property
    def mean(self) -> float:
        """Mean log-probability per token."""
        return self.log_probability / max(self.tokens, 1)

    @property
    def record(self) -> dict[str, ScoreField]:
        """Its fields by name; without an alignment, this and the source's words are left out."""
        return {name: value for name, value in vars(self).items() if value is not None or name == "confidence"}

    @property
    def line(self) -> dict[str, ScoreField]:
        """Its record for files: numbers with four decimals, the alignment in Pharaoh format, such as "0-0 1-2"."""
        fields: dict[str, ScoreField] = {
            name: round(value, 4) if isinstance(value, (int, float)) else value for name, value in self.record.items()
        }
        fields["word_log_probabilities"] = [round(value, 4) for value in self.word_log_probabilities]
        if self.alignment is not None:
            fields["alignment"] = " ".join(f"{source}-{target}" for source, target in self.alignment)
        return fields


@dataclass(frozen=True)
class TranslationScorer:
    """Scores translations as the model predicts them: without logits processors and sampling.

    Attributes:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        alpha: Exponent of the length penalty.
        penalty_type: Its formula; see `length_penalty`.
        heads: Layer and head of the attentions that align words; None for no alignment.
        forced: Tokens after the start token that were forced, not searched.
        is_measured: Whether the search is the one for which the model's confidence was measured.
        others: The other models of an ensemble, whose mean probability counts; the first alone aligns.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    alpha: float
    penalty_type: str
    heads: Sequence[Sequence[int]] | None = None
    forced: int = 0
    is_measured: bool = False
    others: Sequence[PreTrainedModel] = ()

    @cached_property
    def _decoder(self) -> PreTrainedModel:
        """The model, as a copy that returns attention if words are aligned."""
        return self.model if self.heads is None else eager_copy(self.model)

    def score(self, inputs: Mapping[str, torch.Tensor], output_ids: torch.Tensor) -> list[TranslationScore]:
        """Score the translations of a batch. The confidence assumes that each is the best of its source.

        Args:
            inputs: Arguments of the encoder, `[batch, source]` each.
            output_ids: `[batch * translations, 1 + target]`, the translations of each source in turn, as `generate`
                returns them: after the start token, up to the EOS or the length limit, then padding.
        """
        log_probabilities, attention = read_decoder(self._decoder, inputs, output_ids, self.heads or ())
        if self.others:
            members = [log_probabilities, *(read_decoder(each, inputs, output_ids)[0] for each in self.others)]
            log_probabilities = torch.stack(members).logsumexp(0) - math.log(len(members))  # [rows, target]
        sources = inputs["input_ids"].tolist()
        translations = len(output_ids) // len(sources)
        scores = []
        for row, (ids, values) in enumerate(zip(output_ids[:, 1:].tolist(), log_probabilities.tolist(), strict=True)):
            source = sources[row // translations]
            ids = self._without_padding(ids)
            numbers, words = token_words(self.tokenizer, ids)
            score = self._score(values[: len(ids)], numbers, words)
            if self.heads is not None:
                score = self._aligned(score, source, numbers, attention[row])
            scores.append(replace(score, confidence=self._confidence(score, source)))
        return scores

    def _without_padding(self, ids: list[int]) -> list[int]:
        """The ids up to EOS, or, if the length limit cut the translation off, up to the last that is not padding."""
        if self.tokenizer.eos_token_id in ids:
            return ids[: ids.index(self.tokenizer.eos_token_id) + 1]
        padding = self.tokenizer.pad_token_id
        return ids[: max((stop for stop, token in enumerate(ids, 1) if token != padding), default=0)]

    def _score(self, values: list[float], numbers: Sequence[int | None], words: list[str]) -> TranslationScore:
        """The score of tokens with the log-probabilities `values`, which belong to the words with these `numbers`."""
        sums = [0.0] * len(words)
        for word, value in zip(numbers, values, strict=True):
            if word is not None:
                sums[word] += value
        searched = values[self.forced :]
        penalty = float(length_penalty(len(searched), self.alpha, self.penalty_type)) if searched else 1.0
        return TranslationScore(sum(values), sum(searched) / penalty, len(values), words, sums)

    def _aligned(
        self, score: TranslationScore, source: list[int], numbers: Sequence[int | None], attention: torch.Tensor
    ) -> TranslationScore:
        """Add the word alignment, by the attention `[target, source]` of each step."""
        source_numbers, source_words = token_words(self.tokenizer, source, is_whole=True)
        links = word_links(attention, source_numbers, len(source_words), numbers, len(score.words))
        return replace(score, alignment=links, source_words=source_words)

    def _confidence(self, score: TranslationScore, source: list[int]) -> float | None:
        """The confidence; see `TranslationScore`."""
        curve = for_direction(self.model.config, "confidence_curve", source)
        low, high = for_direction(self.model.config, "confidence_tokens", source) or (0, math.inf)
        if curve is None or not self.is_measured or not low <= score.tokens <= high:
            return None
        return _interpolate(curve, score.mean)

    def certain(self, text: str) -> TranslationScore:
        """The score of a translation that copies a source without words: its probability is 1."""
        words = text.split()
        score = TranslationScore(0.0, 0.0, 0, words, [0.0] * len(words))
        links = [(index, index) for index in range(len(words))]
        return score if self.heads is None else replace(score, alignment=links, source_words=words)


def for_direction(config: PreTrainedConfig, name: str, source: Sequence[int]) -> Any:
    """The value of a configuration's field for the direction of a source's token ids; None without one."""
    values = getattr(config, name, None)
    if not isinstance(values, Mapping):
        return values
    first = next((token for token in source if token != config.pad_token_id), None)
    tags = getattr(config, "language_tags", None) or {}
    return next((values.get(language) for language, tag in tags.items() if tag == first), None)


def word_links(
    attention: torch.Tensor,
    sources: Sequence[int | None],
    source_words: int,
    targets: Sequence[int | None],
    target_words: int,
) -> list[tuple[int, int]]:
    """Link each target word to the source word with the largest attention, summed over the tokens of both.

    Args:
        attention: `[target, source]`, of each target token.
        sources: The word of each source token; None for tokens that belong to none.
        source_words: Number of source words.
        targets: The word of each target token, without the EOS; None for tokens that belong to none.
        target_words: Number of target words.

    Returns:
        `(source, target)` for each target word; empty if there are no source words.
    """
    summed = [[0.0] * source_words for _ in range(target_words)]
    for target, weights in zip(targets, attention.tolist(), strict=False):
        for source, weight in zip(sources, weights, strict=False):
            if source is not None and target is not None:
                summed[target][source] += weight
    return [(row.index(max(row)), target) for target, row in enumerate(summed)] if source_words else []


@torch.no_grad()
def read_decoder(
    model: PreTrainedModel,
    inputs: Mapping[str, torch.Tensor],
    output_ids: torch.Tensor,
    heads: Sequence[Sequence[int]] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each token but the first, given the source and earlier tokens; and attention.

    Args:
        model: The model, in evaluation mode.
        inputs: Arguments of the encoder, `[batch, source]` each.
        output_ids: `[batch * translations, 1 + target]`, the translations of each source in turn.
        heads: Layer and head of each encoder-decoder attention to average, for an `eager_copy`; empty for none.

    Returns:
        `[batch * translations, target]` log-probabilities in float32; values after the EOS have no meaning. And
        `[batch * translations, target, source]`, the mean attention of each step; without `heads` it is empty.
    """
    translations = len(output_ids) // len(inputs["input_ids"])
    states = model.get_encoder()(**inputs)[0].repeat_interleave(translations, 0)  # [rows, source, d_model]
    mask = inputs["attention_mask"].repeat_interleave(translations, 0)  # [rows, source]
    values, attentions = [], []
    for rows in torch.arange(len(output_ids)).split(max(1, _TOKENS_AT_ONCE // output_ids.shape[1])):
        fed, predicted = output_ids[rows, :-1], output_ids[rows, 1:]  # [rows, target]
        outputs = model(
            encoder_outputs=(states[rows],),
            attention_mask=mask[rows],
            decoder_input_ids=fed,
            use_cache=False,
            output_attentions=bool(heads),
        )
        logits = outputs.logits.float()  # [rows, target, vocabulary]
        values.append(logits.log_softmax(-1).gather(-1, predicted.unsqueeze(-1)).squeeze(-1))
        found = [outputs.cross_attentions[layer][:, head] for layer, head in heads]  # [rows, target, source] each
        attentions.append(torch.stack(found).mean(0) if found else logits[:, :0])
    return torch.cat(values), torch.cat(attentions)


def eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with the same weights that computes attention by "eager", the only implementation that returns it.

    The model itself stays as it is, since other threads may use it.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, shared)
    copied.set_attn_implementation("eager")
    return copied


def token_words(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], is_whole: bool = False
) -> tuple[list[int | None], list[str]]:
    """The index of each token's word (None for special tokens), and the words.

    White space separates words. In scripts without spaces, such as Chinese and Thai, each token that begins
    with a letter is a word, and so are numbers and words of other scripts between them. With `is_whole`, as for a
    source, unknown tokens count as words; translations are shown without them.
    """
    added = [token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special]  # also language tags
    special = {*tokenizer.all_special_ids, *added} - ({tokenizer.unk_token_id} if is_whole else set())
    kept = [token for token in ids if token not in special]
    prefixes = tokenizer.batch_decode(
        [kept[:stop] for stop in range(1, len(kept) + 1)], clean_up_tokenization_spaces=False
    )
    if is_whole and tokenizer.unk_token:
        # An unknown token loses the space before it; usually it is a whole word.
        prefixes = [prefix.replace(tokenizer.unk_token, f" {tokenizer.unk_token}") for prefix in prefixes]
    words: list[str] = []
    numbers: list[int | None] = []
    is_open = False  # whether the last word may continue
    for text in added_texts(prefixes):
        parts = text.split()
        if parts and is_open and not text[0].isspace() and not begins_unspaced_word(text, words[-1]):
            words[-1] += parts.pop(0)
        words += parts
        numbers.append(len(words) - 1 if text.strip() else None)
        is_open = not text[-1].isspace() if text else is_open
    # White space and parts of a character belong to the word that follows them.
    following = len(words) - 1 if words else None
    for index in reversed(range(len(numbers))):
        numbers[index] = following = following if numbers[index] is None else numbers[index]
    indices = iter(numbers)
    return [None if token in special else next(indices) for token in ids], words


def added_texts(prefixes: Sequence[str]) -> list[str]:
    """The text that each token adds, given the text up to each; the last of a character's tokens adds it."""
    texts, before = [], ""
    for stop, prefix in enumerate(prefixes, 1):
        known = prefix if stop == len(prefixes) else prefix.rstrip("\ufffd")  # which later tokens complete
        texts.append(known[len(before) :])
        before = known
    return texts


def begins_unspaced_word(text: str, before: str) -> bool:
    """Whether the text of a token begins a word after other text, where a script writes no spaces between words."""
    if text[0].isalpha() and UNSPACED_CHARACTER.match(text):
        return True
    return text[0].isalnum() and not before[-1].isdigit() and UNSPACED_CHARACTER.match(before[-1]) is not None


def _interpolate(curve: Sequence[Sequence[float]], value: float) -> float | None:
    """The curve's height at a value: linear between its points `(value, height, ...)`, None outside them."""
    value = round(value, 4)  # as the curve's values are
    if not curve[0][0] <= value <= curve[-1][0]:
        return None
    right_end = min(bisect([point[0] for point in curve], value), len(curve) - 1)
    (left, low, *_), (right, high, *_) = curve[right_end - 1], curve[right_end]
    return high if left == right else low + (high - low) * (value - left) / (right - left)


def encodes_targets(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer can encode targets; FSMTTokenizer can only if its two vocabularies are equal."""
    if not isinstance(tokenizer, FSMTTokenizer):
        return True
    # `encoder` has the ids of source tokens, `decoder` the tokens of target ids.
    return {number: token for token, number in tokenizer.encoder.items()} == tokenizer.decoder


def for_targets(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer to call with `text_target`: FSMTTokenizer splits words by the rules of its source language only.

    Raises:
        ValueError: It has two vocabularies, and encodes with the source's only.
    """
    if not encodes_targets(tokenizer):
        raise ValueError("target: the model's tokenizer has two vocabularies, and encodes with the source's only")
    if isinstance(tokenizer, FSMTTokenizer):
        tokenizer = copy.copy(tokenizer)
        tokenizer.src_lang = tokenizer.tgt_lang
    return tokenizer
