"""Translation in batches of similar length, without a pipeline."""

import copy
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tokenizers import Encoding
from transformers import BatchEncoding, FSMTTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import LogitsProcessor

from .languages_vaswani import split_tag, target_tag, with_tag
from .sentences_vaswani import Paragraphs, longer_than_trained


# Tokens that a batch may generate, in all its beams, for each source token of `tokens_per_batch`. With the paper's
# search only sentences below 17 tokens reach this limit, since each may generate 50 tokens more than its source.
_GENERATED_PER_SOURCE_TOKEN = 16


def translate_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    batch_size: int | None = None,
    truncation: bool = False,
    target_language: str | None = None,
    split_sentences: bool = False,
    observe_long: Callable[[dict[int, int]], None] | None = None,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Translate texts in batches of similar length, the longest first.

    So memory runs out in the first batch or never. Blank sentences are not decoded; their empty translations come last.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer.
        sentences: Source sentences, used as they are, or with `split_sentences` texts of several.
        tokens_per_batch: Source tokens of a batch, padding included. All beams of a batch together may generate at most
            16 times as many, which limits batches of short sentences. A sentence above either limit forms its own
            batch.
        batch_size: Sentences of a batch, instead of `tokens_per_batch`.
        truncation: Cut sentences at the tokenizer's `model_max_length`.
        target_language: Of a model of several directions; by default each sentence begins with the tag of its target.
        split_sentences: Translate each text sentence by sentence; white space between sentences stays as it is.
        observe_long: Called before the first batch with those `sentences`, by index, that have more tokens than any
            trained on, and the number of tokens, including any cut off; with `split_sentences`, of such a sentence.
        generate_kwargs: For `generate`; by default it decodes as in section 6.1.

    Yields:
        Indices into `sentences`, and the `num_return_sequences` translations of each, best first. Every index is
        yielded once.

    Raises:
        ImportError: The sentence splitter is not installed.
        TypeError: A sentence is not a string.
        ValueError: `tokens_per_batch` or `batch_size` is below 1; a sentence has a lone surrogate; or the model does
            not translate into the language, or does not know into which.
    """
    sentences = [require_text(sentence, f"text {index}") for index, sentence in enumerate(sentences)]
    if tag := target_tag(model.config, None, target_language):
        sentences = [with_tag(split_tag(model.config, sentence, tag)[1], tag) for sentence in sentences]
    paragraphs = Paragraphs(model.config, sentences, split_sentences)

    def observe(long: dict[int, int]) -> None:
        if observe_long is not None:
            observe_long({paragraphs.texts[index]: length for index, length in long.items()})

    def translated() -> Iterator[tuple[list[int], list[list[str]]]]:
        own = (paragraphs.sentences, tokens_per_batch, batch_size, truncation)
        for indices, output_ids in generate_in_batches(model, tokenizer, *own, observe_long=observe, **generate_kwargs):
            texts = tokenizer.batch_decode(output_ids.flatten(0, 1), skip_special_tokens=True)
            returned = output_ids.shape[1]
            yield indices, [texts[i : i + returned] for i in range(0, len(texts), returned)]
        if blank := [index for index, sentence in enumerate(paragraphs.sentences) if not sentence.strip()]:
            yield blank, [[""] * count(model, generate_kwargs, "num_return_sequences") for _ in blank]

    yield from paragraphs.join(translated())


def generate_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    batch_size: int | None = None,
    truncation: bool = False,
    processors: Callable[[list[int], list[int]], list[LogitsProcessor]] | None = None,
    observe_long: Callable[[dict[int, int]], None] | None = None,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Indices and token ids `[batch, returned, target]` of all but blank sentences; see `translate_in_batches`.

    `processors` makes the logits processors of a batch, from the indices of its sentences and their numbers of tokens.
    """
    for index, sentence in enumerate(sentences):
        require_text(sentence, f"text {index}")
    filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    texts = [sentences[index] for index in filled]
    encoded = encode(model, tokenizer, texts, truncation) if filled else BatchEncoding()
    lengths = [len(ids) for ids in encoded.get("input_ids", [])]
    if observe_long is not None:
        # Tokenizers without encodings, in Python, cut off nothing by default.
        cut = [_tokens_cut_off(each) for each in encoded.encodings or ()] or [0] * len(filled)
        whole = {index: sum(parts) for index, *parts in zip(filled, lengths, cut, strict=True)}
        observe_long(longer_than_trained(model.config, whole))
    costs = {length: _cost(model, length, generate_kwargs) for length in set(lengths)}
    given = generate_kwargs.get("logits_processor") or []
    # Weights that accelerate offloads are on no device; its hooks then move the inputs.
    device = torch.device("cpu") if model.device.type == "meta" else model.device
    for batch in _batches_of_similar_length(lengths, costs, tokens_per_batch, batch_size):
        rows = {name: [column[row] for row in batch] for name, column in encoded.items()}
        inputs = tokenizer.pad(rows, return_tensors="pt").to(device)  # [batch, source]
        indices = [filled[row] for row in batch]
        if processors is not None:
            generate_kwargs["logits_processor"] = [*given, *processors(indices, [lengths[row] for row in batch])]
        output_ids = model.generate(**inputs, **generate_kwargs)  # [batch * returned, target]
        yield indices, output_ids.unflatten(0, (len(batch), -1))


def _tokens_cut_off(encoding: Encoding) -> int:
    return sum(part.special_tokens_mask.count(0) for part in encoding.overflowing)


def _cost(model: PreTrainedModel, length: int, generate_kwargs: dict[str, Any]) -> int:
    """Tokens of `tokens_per_batch` that a source of `length` tokens takes up, by its own or its generated tokens."""
    beams = max(count(model, generate_kwargs, name) for name in ("num_beams", "num_return_sequences"))
    generated = beams * max_generated(model, length, generate_kwargs)
    return max(length, -(-generated // _GENERATED_PER_SOURCE_TOKEN))


def max_generated(model: PreTrainedModel, length: int, generate_kwargs: dict[str, Any]) -> int:
    """Largest number of tokens that `generate` may add for a source of `length` tokens."""
    for scope in _scopes(model, generate_kwargs):
        limits = [scope.get("max_new_tokens"), scope.get("max_length")]
        if scope.get("max_new_tokens_over_source") is not None:
            limits.append(length + scope["max_new_tokens_over_source"])
        if any(limits):
            return max(limit for limit in limits if limit is not None)
    return 20  # transformers' default


def _batches_of_similar_length(
    lengths: list[int], costs: dict[int, int], tokens_per_batch: int, batch_size: int | None
) -> Iterator[list[int]]:
    """Indices into `lengths`, the longest first; a length takes up `costs[length]` of `tokens_per_batch`."""
    if min(tokens_per_batch, batch_size or 1) < 1:
        raise ValueError(f"tokens_per_batch, batch_size: {tokens_per_batch}, {batch_size}; both must be at least 1")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        stop = start + (batch_size or max(1, tokens_per_batch // costs[lengths[order[start]]]))
        yield order[start:stop]
        start = stop


def require_text(text: object, name: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the translation pipeline takes strings, not {type(text).__name__}: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name}: {reprlib.repr(text)} has a lone surrogate at position {error.start}; give valid Unicode"
        raise ValueError(message) from None
    return text


def encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str | list[str], truncation: bool, **options: Any
) -> BatchEncoding:
    """Token ids of one or several sentences, truncated to the learned position table, if there is one."""
    table = getattr(model.config, "max_positions", None)
    return tokenizer(text, truncation=truncation or table is not None, max_length=table, **options)


def for_targets(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer to call with `text_target`: FSMTTokenizer splits words by the rules of its source language only."""
    if isinstance(tokenizer, FSMTTokenizer):
        tokenizer = copy.copy(tokenizer)
        tokenizer.src_lang = tokenizer.tgt_lang
    return tokenizer


def _scopes(model: PreTrainedModel, generate_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """What `generate` reads, in order of precedence: keywords, the `generation_config` given, the model's."""
    configs = (generate_kwargs.get("generation_config"), model.generation_config)
    return [generate_kwargs, *(vars(config) for config in configs if config is not None)]


def count(model: PreTrainedModel, generate_kwargs: dict[str, Any], name: str) -> int:
    """`num_beams` or `num_return_sequences` of `generate`."""
    return next((scope[name] for scope in _scopes(model, generate_kwargs) if scope.get(name) is not None), 1)
