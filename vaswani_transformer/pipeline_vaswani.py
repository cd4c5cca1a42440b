"""`pipeline("translation")`, which transformers 5 no longer has: text in, translated text out."""

import re
from collections.abc import Iterator, Sequence
from types import GeneratorType
from typing import Any

from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, Pipeline, PreTrainedModel, PreTrainedTokenizerBase
from transformers import pipelines as _pipelines


def translate_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    batch_size: int | None = None,
    truncation: bool = False,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Translate sentences in batches of similar length, the longest first: memory fails at once or never.

    Blank sentences are not decoded; their translations are empty, and come last.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer.
        sentences: Source sentences, used as they are.
        tokens_per_batch: Source tokens of a batch, padding included. A longer sentence is a batch of its own.
        batch_size: Sentences of a batch, instead of `tokens_per_batch`.
        truncation: Cut sentences at the tokenizer's `model_max_length`.
        generate_kwargs: For `generate`; by default it decodes as section 6.1 says.

    Yields:
        Indices into `sentences`, and for each of them its translations: one, or `num_return_sequences` of them, best
        first. Every index is yielded once.

    Raises:
        TypeError: One of the sentences is no string.
        ValueError: `tokens_per_batch` or `batch_size` is below 1.
    """
    for sentence in sentences:
        _require_text(sentence)
    filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    encoded = _encode(model, tokenizer, [sentences[index] for index in filled], truncation) if filled else {}
    lengths = [len(ids) for ids in encoded.get("input_ids", [])]
    for batch in _batches_of_similar_length(lengths, tokens_per_batch, batch_size):
        rows = {name: [column[row] for row in batch] for name, column in encoded.items()}
        inputs = tokenizer.pad(rows, return_tensors="pt").to(model.device)  # [batch, source]
        output_ids = model.generate(**inputs, **generate_kwargs)  # [batch * returned, target]
        texts = tokenizer.batch_decode(output_ids, skip_special_tokens=True)
        returned = len(texts) // len(batch)
        yield [filled[row] for row in batch], [texts[i : i + returned] for i in range(0, len(texts), returned)]
    if len(filled) < len(sentences):
        blank = [index for index, sentence in enumerate(sentences) if not sentence.strip()]
        yield blank, [[""] * _num_return_sequences(model, generate_kwargs) for _ in blank]


def _batches_of_similar_length(
    lengths: list[int], tokens_per_batch: int, batch_size: int | None
) -> Iterator[list[int]]:
    """Indices into `lengths`, those of the greatest first."""
    if min(tokens_per_batch, batch_size or 1) < 1:
        raise ValueError(f"tokens_per_batch, batch_size: {tokens_per_batch}, {batch_size}; both must be at least 1")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        stop = start + (batch_size or max(1, tokens_per_batch // lengths[order[start]]))
        yield order[start:stop]
        start = stop


def _require_text(text: Any) -> None:
    if not isinstance(text, str):
        raise TypeError(f"the translation pipeline takes strings, not {type(text).__name__}: {text!r}")


def _encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str | list[str], truncation: bool, **options: Any
) -> Any:
    """Token ids of one or several sentences, cut where a table of learned positions ends; sinusoids have no end."""
    learned = getattr(model.config, "position_encoding", None) == "learned"
    table = model.config.max_position_embeddings if learned else None
    return tokenizer(text, truncation=truncation or learned, max_length=table, **options)


def _num_return_sequences(model: PreTrainedModel, generate_kwargs: dict[str, Any]) -> int:
    """How many translations of a sentence `generate` would return."""
    configs = (generate_kwargs.get("generation_config"), model.generation_config)
    given = (generate_kwargs.get("num_return_sequences"), *(getattr(c, "num_return_sequences", None) for c in configs))
    return next((number for number in given if number is not None), 1)


class VaswaniTranslationPipeline(Pipeline):
    """Translates strings, lists, datasets and generators.

    A string or a list gives a list of `{"translation_text": ...}`, one for each input (a list of lists with
    `num_return_sequences` above 1); a dataset or generator gives an iterator over such lists, read as it goes. Empty
    input gives empty output. Keywords of `generate` are passed on; by default it decodes as the paper does.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _pipeline_calls_generate = True

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Translate `inputs`.

        Args:
            inputs: A string, a sequence of strings, a `torch.utils.data.Dataset` of strings (such as transformers'
                `KeyDataset`) or a generator of strings.
            batch_size: Sentences translated at once. By default as many of a sequence as `translate_in_batches` puts
                in a batch, and one of a dataset or generator.
            truncation: Cut inputs at the tokenizer's `model_max_length`.

        Raises:
            TypeError: Something else than a string is to be translated.
        """
        if isinstance(inputs, (str, GeneratorType, Dataset)):
            return super().__call__(inputs, **kwargs)
        results = self._translate_sequence(list(inputs), **kwargs)
        if all(len(hypotheses) == 1 for hypotheses in results):
            return [hypotheses[0] for hypotheses in results]
        return results

    def _translate_sequence(
        self, sentences: list[str], batch_size: int | None = None, num_workers: int | None = None, **kwargs: Any
    ) -> list[list[dict[str, str]]]:
        """The translations of each sentence. `num_workers`, which feed datasets, are not needed."""
        encode_kwargs, generate_kwargs, _ = self._sanitize_parameters(**kwargs)
        batches = translate_in_batches(
            self.model,
            self.tokenizer,
            sentences,
            batch_size=batch_size or self._batch_size,
            **{**self._preprocess_params, **encode_kwargs},
            **self._with_defaults({**self._forward_params, **generate_kwargs}),
        )
        results: list[list[dict[str, str]]] = [[] for _ in sentences]
        with self.device_placement():
            for indices, translations in batches:
                for index, texts in zip(indices, translations, strict=True):
                    results[index] = [{"translation_text": text} for text in texts]
        return results

    def _sanitize_parameters(
        self, truncation: bool | None = None, src_lang: str | None = None, tgt_lang: str | None = None, **generate: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        # The languages come from task names such as translation_en_to_de; a model knows one pair only.
        return {} if truncation is None else {"truncation": truncation}, generate, {}

    def _with_defaults(self, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keywords for `generate`, with those given when the pipeline was made."""
        if hasattr(self, "_prepare_generate_kwargs"):  # from transformers 5.20
            return self._prepare_generate_kwargs(generate_kwargs)
        if "generation_config" in generate_kwargs:
            return generate_kwargs
        return {**generate_kwargs, "generation_config": self.generation_config}

    def preprocess(self, text: str, truncation: bool = False) -> dict[str, Any]:
        _require_text(text)
        encoded = _encode(self.model, self.tokenizer, text, truncation, return_tensors="pt")
        return {**encoded, "blank": not text.strip()}

    def _forward(self, model_inputs: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        blank = model_inputs.pop("blank")
        output_ids = self.model.generate(
            **model_inputs, **self._with_defaults(generate_kwargs)
        )  # [batch * returned, target]
        batch = model_inputs["input_ids"].shape[0]
        return {"output_ids": output_ids.unflatten(0, (batch, -1)), "blank": blank}

    def postprocess(self, model_outputs: dict[str, Any]) -> list[dict[str, str]]:
        hypotheses = model_outputs["output_ids"][0]  # [returned, target]
        if model_outputs["blank"]:
            return [{"translation_text": ""} for _ in hypotheses]
        return [
            {"translation_text": text} for text in self.tokenizer.batch_decode(hypotheses, skip_special_tokens=True)
        ]


_LANGUAGE_PAIR = re.compile(r"translation_(\w+)_to_(\w+)")


def install_translation_task() -> None:
    """Make `pipeline("translation")` and `pipeline("translation_en_to_de")` known to transformers.

    Where transformers has a translation task of its own, that stays.
    """
    registry = _pipelines.PIPELINE_REGISTRY
    # From 5.19 a list of removed tasks is asked before the registry is.
    getattr(_pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    if "translation" in registry.supported_tasks:
        return
    registry.register_pipeline(
        "translation", pipeline_class=VaswaniTranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
    )
    # Else `pipe.save_pretrained` would declare the pipeline as code of the saved directory.
    del VaswaniTranslationPipeline._registered_impl
    original = registry.check_task

    def check_task(task: str) -> tuple[str, dict, Any]:
        match = _LANGUAGE_PAIR.fullmatch(task)
        if match and task not in registry.supported_tasks:
            return "translation", registry.supported_tasks["translation"], match.groups()
        return original(task)

    registry.check_task = check_task
