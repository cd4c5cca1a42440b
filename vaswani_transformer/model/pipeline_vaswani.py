"""`pipeline("translation")`, which transformers 5 removed: text in, translated text out."""

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, Pipeline, PreTrainedModel, PreTrainedTokenizerBase
from transformers import pipelines as _pipelines
from transformers.generation.logits_process import LogitsProcessor


# A record with "translation_text", "translation_token_ids" or both.
Translation = dict[str, str | torch.Tensor]

_LANGUAGE_PAIR = re.compile(r"translation_(\w+)_to_(\w+)")

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
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Translate sentences in batches of similar length, the longest first.

    So memory runs out in the first batch or never. Blank sentences are not decoded; their empty translations come last.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer.
        sentences: Source sentences, used as they are.
        tokens_per_batch: Source tokens of a batch, padding included. All beams of a batch together may generate at most
            16 times as many, which limits batches of short sentences. A sentence above either limit forms its own
            batch.
        batch_size: Sentences of a batch, instead of `tokens_per_batch`.
        truncation: Cut sentences at the tokenizer's `model_max_length`.
        generate_kwargs: For `generate`; by default it decodes as in section 6.1.

    Yields:
        Indices into `sentences`, and the `num_return_sequences` translations of each, best first. Every index is
        yielded once.

    Raises:
        TypeError: A sentence is not a string.
        ValueError: `tokens_per_batch` or `batch_size` is below 1, or a sentence has a lone surrogate.
    """
    batches = generate_in_batches(
        model, tokenizer, sentences, tokens_per_batch, batch_size, truncation, **generate_kwargs
    )
    for indices, output_ids in batches:
        texts = tokenizer.batch_decode(output_ids.flatten(0, 1), skip_special_tokens=True)
        returned = output_ids.shape[1]
        yield indices, [texts[i : i + returned] for i in range(0, len(texts), returned)]
    if blank := [index for index, sentence in enumerate(sentences) if not sentence.strip()]:
        yield blank, [[""] * _count(model, generate_kwargs, "num_return_sequences") for _ in blank]


def generate_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    batch_size: int | None = None,
    truncation: bool = False,
    processors: Callable[[list[int], list[int]], list[LogitsProcessor]] | None = None,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Indices and token ids `[batch, returned, target]` of all but blank sentences; see `translate_in_batches`.

    `processors` makes the logits processors of a batch, from the indices of its sentences and their numbers of tokens.
    """
    for index, sentence in enumerate(sentences):
        _require_text(sentence, f"text {index}")
    filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    encoded = _encode(model, tokenizer, [sentences[index] for index in filled], truncation) if filled else {}
    lengths = [len(ids) for ids in encoded.get("input_ids", [])]
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


def _cost(model: PreTrainedModel, length: int, generate_kwargs: dict[str, Any]) -> int:
    """Tokens of `tokens_per_batch` that a source of `length` tokens takes up, by its own or its generated tokens."""
    beams = max(_count(model, generate_kwargs, name) for name in ("num_beams", "num_return_sequences"))
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


def _require_text(text: object, name: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the translation pipeline takes strings, not {type(text).__name__}: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name}: {reprlib.repr(text)} has a lone surrogate at position {error.start}; give valid Unicode"
        raise ValueError(message) from None
    return text


def _encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str | list[str], truncation: bool, **options: Any
) -> Any:
    """Token ids of one or several sentences, truncated to the learned position table, if there is one."""
    learned = getattr(model.config, "position_encoding", None) == "learned"
    table = model.config.max_position_embeddings if learned else None
    return tokenizer(text, truncation=truncation or learned, max_length=table, **options)


def _scopes(model: PreTrainedModel, generate_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """What `generate` reads, in order of precedence: keywords, the `generation_config` given, the model's."""
    configs = (generate_kwargs.get("generation_config"), model.generation_config)
    return [generate_kwargs, *(vars(config) for config in configs if config is not None)]


def _count(model: PreTrainedModel, generate_kwargs: dict[str, Any], name: str) -> int:
    """`num_beams` or `num_return_sequences` of `generate`."""
    return next((scope[name] for scope in _scopes(model, generate_kwargs) if scope.get(name) is not None), 1)


def _is_same_language(one: str, other: str) -> bool:
    """Whether two codes name one language, or one names a variety of the other, as "en" and "en_US"."""
    subtags = (re.split("[-_]", code.lower()) for code in (one, other))
    return all(a == b for a, b in zip(*subtags, strict=False))


class GeneratingPipeline(Pipeline):
    """A pipeline that loads a tokenizer and no other processor, and calls `generate`."""

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _pipeline_calls_generate = True


class VaswaniTranslationPipeline(GeneratingPipeline):
    """Translates strings, lists, datasets and generators; an item may be a dict with "text".

    For a string or a list it returns a list of `{"translation_text": ...}`, one for each input (a list of lists with
    `num_return_sequences` above 1); for a dataset or generator, a lazy iterator over such lists. The translation of
    empty text is empty. Keywords of `generate` are passed on; by default it decodes as in the paper.
    """

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Translate `inputs`.

        Args:
            inputs: A string, a sequence of strings, a `torch.utils.data.Dataset` of strings (such as transformers'
                `KeyDataset`) or a generator of strings. A string may be replaced by a dict with "text" and optionally
                "src_lang" and "tgt_lang"; other keys, such as a dataset's columns, are ignored.
            batch_size: Sentences translated at once. By default a sequence is divided as by `translate_in_batches`; the
                items of a dataset or generator are translated one by one.
            truncation: Cut inputs at the tokenizer's `model_max_length`.
            src_lang, tgt_lang: Languages to translate from and into, which must be the model's.
            clean_up_tokenization_spaces: Remove spaces before punctuation, as the tokenizer's `decode` does.
            return_tensors: Return "translation_token_ids", without trailing padding, instead of the text.
            return_text: Return "translation_text" as well.

        Raises:
            TypeError: An input is not text.
            ValueError: The model translates another pair of languages; a text has a lone surrogate; or neither text
                nor tensors are to be returned.
        """
        if isinstance(inputs, (str, Mapping, GeneratorType, Dataset)):
            return super().__call__(inputs, **kwargs)
        if not isinstance(inputs, Iterable) and not hasattr(inputs, "__getitem__"):
            inputs = [inputs]
        results = self._translate_sequence([self._text_of(x, f"text {i}") for i, x in enumerate(inputs)], **kwargs)
        if all(len(hypotheses) == 1 for hypotheses in results):
            return [hypotheses[0] for hypotheses in results]
        return results

    def _translate_sequence(
        self, sentences: list[str], batch_size: int | None = None, num_workers: int | None = None, **kwargs: Any
    ) -> list[list[Translation]]:
        """The translations of each sentence; `num_workers` concerns data loaders and is ignored."""
        encode_kwargs, generate_kwargs, decode_kwargs = self._sanitize_parameters(**kwargs)
        generate_kwargs = self._with_defaults({**self._forward_params, **generate_kwargs})
        decode_kwargs = {**self._postprocess_params, **decode_kwargs}
        batches = generate_in_batches(
            self.model,
            self.tokenizer,
            sentences,
            batch_size=batch_size or self._batch_size,
            **{**self._preprocess_params, **encode_kwargs},
            **generate_kwargs,
        )
        returned = _count(self.model, generate_kwargs, "num_return_sequences")
        results = [[] if text.strip() else self._blank_translations(returned, **decode_kwargs) for text in sentences]
        with self.device_placement():
            for indices, output_ids in batches:
                for index, hypotheses in zip(indices, output_ids, strict=True):
                    results[index] = self._translations(hypotheses.cpu(), **decode_kwargs)
        return results

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        **generate: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        self._require_languages(src_lang, tgt_lang)
        decode = {
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
            "return_tensors": return_tensors,
            "return_text": return_text,
        }
        decode = {name: value for name, value in decode.items() if value is not None}
        merged = {**getattr(self, "_postprocess_params", {}), **decode}
        if merged.get("return_text") is False and not merged.get("return_tensors"):
            raise ValueError("return_text: false leaves nothing to return; leave it out, or set return_tensors")
        return {} if truncation is None else {"truncation": truncation}, generate, decode

    def _require_languages(self, source: str | None, target: str | None) -> None:
        """Raise if a language, given or in the task's name, is not the model's; the model's may be unknown."""
        match = _LANGUAGE_PAIR.fullmatch(self.task or "")
        named_source, named_target = match.groups() if match else (None, None)
        config = self.model.config
        for asked, own, direction in (
            (source or named_source, getattr(config, "source_language", None), "from"),
            (target or named_target, getattr(config, "target_language", None), "into"),
        ):
            if asked and own and not _is_same_language(asked, own):
                raise ValueError(f"the model translates {direction} {own}, not {asked}; choose a model for that pair")

    def _text_of(self, item: object, name: str = "text") -> str:
        """A string, or the "text" of a row of a dataset or of a client's request."""
        if not isinstance(item, Mapping):
            return _require_text(item, name)
        if "text" not in item:
            names = ", ".join(map(repr, item)) or "nothing"
            raise TypeError(f'the translation pipeline takes strings, or dicts with "text"; this dict has {names}')
        self._require_languages(item.get("src_lang"), item.get("tgt_lang"))
        return _require_text(item["text"], name)

    def _with_defaults(self, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keywords for `generate`, merged with those given to the pipeline's constructor."""
        if hasattr(self, "_prepare_generate_kwargs"):  # from transformers 5.20
            return self._prepare_generate_kwargs(generate_kwargs)
        if "generation_config" in generate_kwargs:
            return generate_kwargs
        return {**generate_kwargs, "generation_config": self.generation_config}

    def preprocess(self, text: Any, truncation: bool = False) -> dict[str, Any]:
        text = self._text_of(text)
        encoded = _encode(self.model, self.tokenizer, text, truncation, return_tensors="pt")
        return {**encoded, "blank": not text.strip()}

    def _forward(self, model_inputs: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        blank = model_inputs.pop("blank")
        output_ids = self.model.generate(**model_inputs, **self._with_defaults(generate_kwargs))
        batch = model_inputs["input_ids"].shape[0]
        return {"output_ids": output_ids.unflatten(0, (batch, -1)), "blank": blank}  # [batch, returned, target]

    def postprocess(self, model_outputs: dict[str, Any], **decode_kwargs: Any) -> list[Translation]:
        hypotheses = model_outputs["output_ids"][0]  # [returned, target]
        if model_outputs["blank"]:
            return self._blank_translations(len(hypotheses), **decode_kwargs)
        return self._translations(hypotheses, **decode_kwargs)

    def _blank_translations(self, returned: int, **decode_kwargs: Any) -> list[Translation]:
        """The translations of a blank sentence."""
        empty = torch.tensor(self.tokenizer("").input_ids)  # [1], its end
        return self._translations(empty.expand(returned, -1), **decode_kwargs)

    def _translations(
        self,
        hypotheses: torch.Tensor,
        clean_up_tokenization_spaces: bool | None = None,
        return_tensors: bool = False,
        return_text: bool | None = None,
    ) -> list[Translation]:
        """Records of a sentence's `hypotheses` `[returned, target]`."""
        translations: list[Translation] = [{} for _ in hypotheses]
        if return_tensors:
            for translation, ids in zip(translations, hypotheses, strict=True):
                places = ids.ne(self.tokenizer.pad_token_id).nonzero()  # the start token may be the padding
                translation["translation_token_ids"] = ids[: int(places.max()) + 1]
        if return_text or not return_tensors:
            texts = self.tokenizer.batch_decode(
                hypotheses, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
            )
            for translation, text in zip(translations, texts, strict=True):
                translation["translation_text"] = text
        return translations


def register_task(task: str, pipeline_class: type[GeneratingPipeline]) -> None:
    """Add a task to transformers' registry."""
    _pipelines.PIPELINE_REGISTRY.register_pipeline(
        task, pipeline_class=pipeline_class, pt_model=AutoModelForSeq2SeqLM, type="text"
    )
    # Otherwise `pipe.save_pretrained` would declare the pipeline as remote code of the saved directory.
    del pipeline_class._registered_impl


def install_translation_task() -> None:
    """Make `pipeline("translation")` and `pipeline("translation_en_to_de")` known to transformers.

    If transformers has its own translation task, that is kept.
    """
    registry = _pipelines.PIPELINE_REGISTRY
    # From transformers 5.19, a list of removed tasks takes precedence over the registry.
    getattr(_pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    if "translation" in registry.supported_tasks:
        return
    register_task("translation", VaswaniTranslationPipeline)
    original = registry.check_task

    def check_task(task: str) -> tuple[str, dict, Any]:
        match = _LANGUAGE_PAIR.fullmatch(task)
        if match and task not in registry.supported_tasks:
            return "translation", registry.supported_tasks["translation"], match.groups()
        return original(task)

    registry.check_task = check_task
