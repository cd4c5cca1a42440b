"""Translation in batches of similar length, and the results in order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import LogitsProcessor
from transformers.utils import logging

from .generation_vaswani import search_options
from .languages_vaswani import ENCODING_LOCK, Directions, change_case, has_words, require_text
from .scores_vaswani import TranslationScore, TranslationScorer, alignment_heads, for_direction
from .search_options_vaswani import LENGTH_FIELDS, SearchOptions, similar_length_batches
from .sentences_vaswani import Paragraph, split_paragraphs


logger = logging.get_logger(__name__)

Result = TypeVar("Result")

# Keywords that apply to a single sentence, or restrict `generate` to one at a time.
_ONE_SENTENCE_ONLY = ("decoder_input_ids", "streamer", "assistant_model", "prompt_lookup_num_tokens")

# Confidence is unreliable for a text if a larger share of its translations lies outside the measured range; for text of
# the same kind, the share is about 0.05. With fewer sentences, it says little.
_UNLIKE, _ENOUGH = 0.15, 20

# Keywords of `generate` that are covered by `SearchOptions` or do not change translations.
_PLAIN_KEYWORDS = {*LENGTH_FIELDS, *(field.name for field in fields(SearchOptions)), "use_cache"}


@dataclass(frozen=True)
class Translation:
    """A translation of a sentence, or of a text of several sentences.

    Attributes:
        text: The translation.
        token_ids: Its token ids, start token included, without padding; for a text, the ids of its sentences in turn.
        score: Its probability by the model; None if scores were not requested.
    """

    text: str
    token_ids: list[int]
    score: TranslationScore | None = None


def warn_once(message: str) -> None:
    """Warn once of the same, also if several threads translate."""
    with ENCODING_LOCK:
        logger.warning_once(message)


class SearchEngine(Protocol):
    """Searches in place of a model; a call may have the sentences of several `batches`, which it divides itself."""

    batches: int

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        """As `generate` of the model."""


def translate_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    batch_size: int | None = None,
    truncation: bool = False,
    target_language: str | None = None,
    split_sentences: bool = False,
    return_scores: bool = False,
    return_alignment: bool = False,
    engine: SearchEngine | None = None,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[list[Translation]]]]:
    """Translate texts in batches of similar length, the longest first.

    Memory therefore runs out in the first batch or never. A sentence in capitals is translated in lower case, unless
    that takes more tokens, and the translation is put in capitals. A sentence without words, such as "-" or "14:35", is
    its own translation, unless words or a prefix are forced; these, and the empty translations of blank sentences, come
    last.

    Args:
        model, tokenizer: The model, on the device to use, and its tokenizer.
        sentences: Source sentences, used as they are; with `split_sentences`, texts of several sentences.
        tokens_per_batch: Source tokens of a batch, padding included. All beams of a batch together may generate at most
            16 times as many, which limits batches of short sentences. A sentence above either limit forms its own
            batch.
        batch_size: Sentences of a batch, instead of `tokens_per_batch`.
        truncation: Cut sentences at the tokenizer's `model_max_length`.
        target_language: Required if the model has several directions, unless each sentence begins with a tag.
        split_sentences, return_scores, return_alignment: As in `VaswaniTranslationPipeline`.
        engine: Searches in place of the model, such as `ExportedModel`. The model scores and aligns.
        generate_kwargs: Keywords of `generate`; by default it decodes as in section 6.1. `decoder_input_ids`
            `[1, prefix]` are tokens with which all translations begin.

    Yields:
        Indices into `sentences`, and the `num_return_sequences` translations of each, best first. Every index is
        yielded once.

    Raises:
        TypeError: A sentence is not a string.
        ValueError: A sentence has a lone surrogate; the model does not translate into the language, or the language is
            ambiguous; `decoder_input_ids` are not a prefix; scores or alignments are requested with a `custom_generate`
            other than the package's own; or the engine lacks an option.
    """
    directions, tag = Directions(model.config), direction_tag(model, tokenizer, None, target_language)
    texts = [directions.tagged(require_text(text, f"text {index}"), tag) for index, text in enumerate(sentences)]
    search, scorer, paragraphs = search_options(model, generate_kwargs), None, None
    if return_scores or return_alignment:
        heads = alignment_heads(model) if return_alignment else None
        scorer = _scorer(model, tokenizer, search, heads, generate_kwargs)
    if split_sentences:
        requested = {"return_alignment": return_alignment, "return_scores": return_scores}
        obstacles = [*_obstacles(search, generate_kwargs), *(name for name, is_set in requested.items() if is_set)]
        paragraphs = split_paragraphs(directions, texts, obstacles, warn_once)
    translate = _SentenceTranslator(model, tokenizer, search, scorer, engine)
    batches = {"tokens_per_batch": tokens_per_batch, "batch_size": batch_size, "truncation": truncation}
    if paragraphs is None:
        yield from translate(texts, **batches, **generate_kwargs)
    else:
        parts = [sentence for paragraph in paragraphs for sentence in paragraph.sentences]
        yield from _join(paragraphs, translate(parts, **batches, **generate_kwargs))


def _obstacles(search: SearchOptions, generate_kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the options of `generate` in use that apply to a single sentence."""
    names = [name for name in _ONE_SENTENCE_ONLY if generate_kwargs.get(name) is not None]
    names += getattr(generate_kwargs.get("custom_generate"), "obstacles", ())
    if search.num_return_sequences > 1 and not search.do_sample:
        names.append("num_return_sequences")  # a text's second best is not its sentences' second best
    return names


class _SentenceTranslator:
    """Translates single sentences in batches; see `translate_in_batches`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        search: SearchOptions,
        scorer: TranslationScorer | None,
        engine: SearchEngine | None,
    ) -> None:
        self.model, self.tokenizer, self.search, self.scorer, self.engine = model, tokenizer, search, scorer, engine
        self._is_unlike: list[bool] = []  # for each translation with a curve: outside the measured range?

    def __call__(self, sentences: Sequence[str], **options: Any) -> Iterator[tuple[list[int], list[list[Translation]]]]:
        """Search for sentences with words, and copy the others, which come last."""
        directions = Directions(self.model.config)
        bare = [directions.split(sentence)[1] for sentence in sentences]
        obstacles = _obstacles(replace(self.search, num_return_sequences=1), options)
        is_forced = not {"decoder_input_ids", "force_words"}.isdisjoint(obstacles)
        copied = [index for index, text in enumerate(bare) if not (text.strip() if is_forced else has_words(text))]
        # Streamers, prefixes and forced words work on the search's own tokens, so the case must stay.
        lowered = {} if obstacles else self._lowered(sentences)
        to_search = list(sentences)
        for index, text in [*lowered.items(), *((index, "") for index in copied)]:
            to_search[index] = text
        batches = generate_in_batches(self.model, self.tokenizer, to_search, self.search, engine=self.engine, **options)
        for indices, inputs, output_ids in batches:
            ranked = self._ranked(inputs, output_ids)
            for row, index in enumerate(indices):
                if index in lowered:
                    ranked[row] = [_in_capitals(each) for each in ranked[row]]
            yield indices, ranked
        if len(self._is_unlike) >= _ENOUGH and sum(self._is_unlike) > _UNLIKE * len(self._is_unlike):
            logger.warning(
                f"confidence is unreliable here: {sum(self._is_unlike)} of {len(self._is_unlike)} translations lie "
                "outside the calibrated range; use score.py --confidence on text of this kind"
            )
        if copied:
            copies = [self._copy(bare[index]) for index in copied]
            if (streamer := options.get("streamer")) is not None:
                for each in copies:  # as `generate` does; without an end, its reader would wait forever
                    streamer.put(torch.tensor(each.token_ids[:1]))
                    streamer.put(torch.tensor(each.token_ids[1:]))
                    streamer.end()
            yield copied, [[each] * self.search.num_return_sequences for each in copies]

    def _lowered(self, sentences: Sequence[str]) -> dict[int, str]:
        """Lower-case forms, by index, of the sentences in capitals, without those that then have more tokens."""
        forms = enumerate(map(Directions(self.model.config).lower_capitals, sentences))
        lowered = {index: form for index, form in forms if form is not None}
        if not lowered:
            return {}
        texts = [sentences[index] for index in lowered], [*lowered.values()]
        with ENCODING_LOCK:
            capitals, lower = (self.tokenizer(each).input_ids for each in texts)
        rows = zip(lowered, capitals, lower, strict=True)
        return {index: lowered[index] for index, before, after in rows if len(after) <= len(before)}

    def _ranked(self, inputs: BatchEncoding, output_ids: torch.Tensor) -> list[list[Translation]]:
        """The translations of each source `[batch, source]`, best first, from ids `[batch, returned, target]`."""
        rows, returned = output_ids.flatten(0, 1), output_ids.shape[1]  # [batch * returned, target]
        translations = _read(self.tokenizer, rows)
        if self.scorer is not None:
            scores = []
            for part in torch.arange(len(output_ids)).chunk(1 if self.engine is None else self.engine.batches):
                each = {name: column[part] for name, column in inputs.items()}
                scores += self.scorer.score(each, output_ids[part].flatten(0, 1))
            translations = [replace(each, score=score) for each, score in zip(translations, scores, strict=True)]
        ranked = [translations[first : first + returned] for first in range(0, len(translations), returned)]
        if self.scorer is None:
            return ranked
        if self.engine is not None:  # it ranks by its own rules
            ranked = [sorted(each, key=lambda one: -one.score.score) for each in ranked]
        for source, (best, *_) in zip(inputs["input_ids"].tolist(), ranked, strict=True):
            if self.scorer.is_measured and for_direction(self.model.config, "confidence_curve", source) is not None:
                self._is_unlike.append(best.score.confidence is None)
        return [[best, *map(_without_confidence, others)] for best, *others in ranked]

    def _copy(self, text: str) -> Translation:
        """The translation of a text without words: the same text, empty if it is blank."""
        text = "" if text.isspace() else text
        with ENCODING_LOCK:
            ids = self.tokenizer(text_target=text).input_ids
        score = None if self.scorer is None else self.scorer.certain(text)
        return Translation(text, [self.model.config.decoder_start_token_id, *ids], score)


def _in_capitals(translation: Translation) -> Translation:
    """Put the text of a translation and all words of its score in capitals."""

    def upper(words: list[str]) -> list[str]:
        return [change_case(word, str.upper) for word in words]

    score = translation.score
    if score is not None:
        sources = score.source_words and upper(score.source_words)
        score = replace(score, words=upper(score.words), source_words=sources)
    return replace(translation, text=change_case(translation.text, str.upper), score=score)


def _without_confidence(translation: Translation) -> Translation:
    """Remove the confidence, which was measured for the best translation alone."""
    return replace(translation, score=replace(translation.score, confidence=None))


def _scorer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    search: SearchOptions,
    heads: list[list[int]] | None,
    generate_kwargs: Mapping[str, Any],
) -> TranslationScorer:
    """Create the scorer of a search's translations; raise a ValueError if the decoding loop is another's."""
    loop = generate_kwargs.get("custom_generate")
    others: Sequence[PreTrainedModel] | None = () if loop is None else getattr(loop, "models", None)
    if others is None:  # no ensemble
        raise ValueError("return_scores, return_alignment: not available with this custom_generate; remove one")
    prefix = forced_prefix(model, generate_kwargs)
    # The start token is not forced.
    forced = 0 if prefix is None else len(prefix[0]) - int(prefix[0, 0] == model.config.decoder_start_token_id)
    measured = search_options(model, getattr(model.config, "confidence_search", None) or {})
    keywords = {name for name, value in generate_kwargs.items() if value is not None}
    is_same = replace(search, num_return_sequences=1) == replace(measured, num_return_sequences=1)
    penalty = search.length_penalty, search.length_penalty_type
    is_measured = is_same and keywords <= _PLAIN_KEYWORDS
    return TranslationScorer(model, tokenizer, *penalty, heads, forced, is_measured, others)


def _read(tokenizer: PreTrainedTokenizerBase, output_ids: torch.Tensor) -> list[Translation]:
    """Decode the ids `[rows, target]` that `generate` returned."""
    texts = tokenizer.batch_decode(output_ids, skip_special_tokens=True)
    is_token = output_ids.ne(tokenizer.pad_token_id)  # [rows, target]; the start token may be padding, too
    lengths = (is_token * torch.arange(1, output_ids.shape[1] + 1, device=output_ids.device)).amax(1).tolist()
    rows = zip(texts, output_ids.tolist(), lengths, strict=True)
    return [Translation(text, ids[:length]) for text, ids, length in rows]


def _join(
    paragraphs: Sequence[Paragraph], batches: Iterable[tuple[list[int], list[list[Translation]]]]
) -> Iterator[tuple[list[int], list[list[Translation]]]]:
    """Yield, after each batch of sentences, the indices of the texts that it completes, and their translations."""
    texts = [index for index, paragraph in enumerate(paragraphs) for _ in paragraph.sentences]
    translated: list[dict[int, list[Translation]]] = [{} for _ in paragraphs]
    for indices, translations in batches:
        for index, ranked in zip(indices, translations, strict=True):
            translated[texts[index]][index] = ranked
        begun = dict.fromkeys(texts[index] for index in indices)
        complete = [text for text in begun if len(translated[text]) == len(paragraphs[text].sentences)]
        joined = []
        for text in complete:
            ranks = zip(*(ranked for _, ranked in sorted(translated[text].items())), strict=True)
            joined.append(
                [
                    Translation(
                        paragraphs[text].join([each.text for each in rank]),
                        [token for each in rank for token in each.token_ids],
                    )
                    for rank in ranks
                ]
            )
        yield complete, joined


def generate_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    search: SearchOptions,
    tokens_per_batch: int,
    batch_size: int | None,
    truncation: bool = False,
    processors: Callable[[list[int], list[int]], list[LogitsProcessor]] | None = None,
    engine: SearchEngine | None = None,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], BatchEncoding, torch.Tensor]]:
    """Search in batches for all sentences that are not blank; see `translate_in_batches`.

    `search` has the options of `generate_kwargs`. `processors` makes the logits processors of a batch, from the indices
    of its sentences and their numbers of tokens.

    Yields:
        Indices into `sentences`, the encoder's inputs `[batch, source]` each, and ids `[batch, returned, target]`.
    """
    generate_kwargs["return_dict_in_generate"] = False
    if search.stop_strings is not None:
        generate_kwargs["tokenizer"] = tokenizer
    filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    texts = [sentences[index] for index in filled]
    longest = getattr(model.config, "max_positions", None)
    if truncation and longest is not None:
        longest = min(longest, tokenizer.model_max_length)
    cut = {"truncation": truncation or longest is not None, "max_length": longest}
    with ENCODING_LOCK:  # tokenizers of transformers have no lock
        encoded = tokenizer(texts, **cut) if texts else BatchEncoding()
    lengths = [len(ids) for ids in encoded.get("input_ids", [])]
    _warn_of_long_sentences(model, encoded, lengths)
    prefix, added = forced_prefix(model, generate_kwargs), generate_kwargs.get("logits_processor") or []
    # Weights that accelerate offloads are on no device; its hooks then move the inputs.
    device = torch.device("cpu") if model.device.type == "meta" else model.device
    tokens_per_batch *= 1 if engine is None else engine.batches
    for batch in similar_length_batches(lengths, search.batch_tokens, tokens_per_batch, batch_size):
        rows = {name: [column[row] for row in batch] for name, column in encoded.items()}
        inputs = tokenizer.pad(rows, return_tensors="pt").to(device)  # [batch, source]
        indices = [filled[row] for row in batch]
        if prefix is not None:
            generate_kwargs["decoder_input_ids"] = prefix.expand(len(batch), -1).to(device)
        if processors is not None:
            generate_kwargs["logits_processor"] = [*added, *processors(indices, [lengths[row] for row in batch])]
        output_ids = (engine or model).generate(**inputs, **generate_kwargs)  # [batch * returned, target]
        yield indices, inputs, output_ids.unflatten(0, (len(batch), -1))


def forced_prefix(model: PreTrainedModel, generate_kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return `decoder_input_ids` `[1, prefix]`; raise a ValueError if translations cannot begin with them."""
    if generate_kwargs.get("decoder_input_ids") is None:
        return None
    prefix = torch.as_tensor(generate_kwargs["decoder_input_ids"])
    ends = torch.tensor(model.generation_config.eos_token_id)
    if prefix.dim() != 2 or len(prefix) != 1 or not prefix.numel() or torch.isin(prefix.cpu(), ends).any():
        raise ValueError(
            "decoder_input_ids: must be one row without EOS, with which all translations begin; tokenize it with "
            "add_special_tokens=False"
        )
    return prefix


def _warn_of_long_sentences(model: PreTrainedModel, encoded: BatchEncoding, lengths: Sequence[int]) -> None:
    """Warn once about sentences longer than any in training, counting the tokens that were cut off."""
    longest = getattr(model.config, "longest_source", None) or getattr(model.config, "max_positions", None)
    # Slow tokenizers have no `encodings`, and do not truncate by default.
    cut_off = [sum(part.special_tokens_mask.count(0) for part in row.overflowing) for row in encoded.encodings or ()]
    if longest is not None and any(sum(both) > longest for both in zip_longest(lengths, cut_off, fillvalue=0)):
        warn_once(
            f"a sentence is longer than any training sentence ({longest} tokens), so part of it may be missing from "
            "the translation; split it"
        )


def direction_tag(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None
) -> str | None:
    """As `Directions.tag`; also raises a ValueError if the tokenizer, such as NLLB's, sets languages itself."""
    if (source or target) and hasattr(tokenizer, "set_src_lang_special_tokens"):
        raise ValueError(
            f"src_lang, tgt_lang: {type(tokenizer).__name__} sets languages itself; set `tokenizer.src_lang` and pass "
            "`forced_bos_token_id`"
        )
    return Directions(model.config).tag(source, target)


def in_order(batches: Iterable[tuple[list[int], list[Result]]]) -> list[Result]:
    """Put the results of all batches in order; each batch has indices, and a result for each."""
    results = {index: result for indices, each in batches for index, result in zip(indices, each, strict=True)}
    return [result for _, result in sorted(results.items(), key=itemgetter(0))]
