"""`pipeline("translation")`, which transformers 5 removed."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset
from transformers import AutoModelForSeq2SeqLM, Pipeline
from transformers import pipelines as _pipelines

from .generation_vaswani import paper_generation_config, search_options
from .languages_vaswani import ENCODING_LOCK, Directions, require_text
from .scores_vaswani import TranslationScorer, for_targets
from .search_options_vaswani import similar_length_batches
from .translation_vaswani import SearchEngine, Translation, direction_tag, in_order, translate_in_batches


StageOptions: TypeAlias = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # for a pipeline's three stages

_LANGUAGE_PAIR = re.compile(r"translation_([\w-]+)_to_([\w-]+)")


class GeneratingPipeline(Pipeline):
    """A pipeline that loads a tokenizer and no other processor, and calls `generate`.

    `preprocess`, `_forward` and `postprocess` each take several inputs. A single input becomes a list of one, and a
    stream becomes lists of `batch_size`.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False

    def __init__(self, *args: Any, batch_size: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batch_size = batch_size

    @abstractmethod
    def stage_options(self, **options: Any) -> StageOptions:
        """Keywords for `preprocess`, `_forward` and `postprocess`."""

    def _sanitize_parameters(self, **options: Any) -> StageOptions:
        """Store the constructor's options, with which the base class calls this, as the defaults of every call."""
        self.defaults = self.stage_options(**options)
        return self.defaults

    def __call__(
        self, inputs: Any, batch_size: int | None = None, num_workers: int | None = None, **kwargs: Any
    ) -> Any:
        """Return the records of each input; `num_workers` concerns data loaders and is ignored."""
        batch_size = batch_size or self.batch_size
        preprocess, forward, postprocess = self.stage_options(**kwargs)
        before, search, after = self.defaults
        if forward.get("generation_config") is not None:  # replaces the constructor's keywords for `generate`
            names = vars(paper_generation_config(self.model.config))
            search = {name: value for name, value in search.items() if name not in names}
        options = {**search, **forward, "batch_size": batch_size}
        parameters = (
            {**before, **preprocess},
            {name: value for name, value in options.items() if value is not None},
            {**after, **postprocess},
        )

        def run(items: list[Any]) -> list[list[Any]]:
            return self.run_single(items, *parameters)

        if isinstance(inputs, (GeneratorType, Dataset)):
            return _stream(run, inputs, batch_size or 1)
        is_sequence = isinstance(inputs, Iterable) or hasattr(inputs, "__getitem__")
        if isinstance(inputs, (str, Mapping)) or not is_sequence:
            return run([inputs])[0]
        results = run(list(inputs))
        if all(len(records) == 1 for records in results):
            return [records[0] for records in results]
        return results


def _stream(run: Callable[[list[Any]], list[list[Any]]], inputs: Any, size: int) -> Iterator[list[Any]]:
    """The records of each input, computed `size` inputs at a time."""
    has_rows = hasattr(inputs, "__len__") and not isinstance(inputs, IterableDataset)
    items = (inputs[row] for row in range(len(inputs))) if has_rows else iter(inputs)
    while batch := list(islice(items, size)):
        yield from run(batch)


class VaswaniTranslationPipeline(GeneratingPipeline):
    """Translates strings, lists, datasets and generators; an item may be a dict with "text".

    For a string or a list it returns a list of `{"translation_text": ...}`, one for each input (a list of lists with
    `num_return_sequences` above 1); for a dataset or generator, a lazy iterator over such lists. Texts are translated
    sentence by sentence; text without words, such as "-" or "14:35", is its own translation, and a sentence in capitals
    is translated in lower case, then put in capitals. Keywords of `generate` are passed on; by default it decodes as in
    the paper.

    Args:
        dtype: The type in which the model computes; for the constructor only. On processors with AVX2 alone,
            `torch.bfloat16` is several times slower than float32.
        inputs: A string, a sequence of strings, a `torch.utils.data.Dataset` of strings (such as transformers'
            `KeyDataset`) or a generator of strings. A string may be replaced by a dict with "text" and optionally
            "src_lang" and "tgt_lang"; other keys, such as a dataset's columns, are ignored.
        batch_size: Sentences translated at once. By default a sequence is divided as by `translate_in_batches`; the
            items of a dataset or generator are translated one by one.
        truncation: Cut inputs at the tokenizer's `model_max_length`.
        src_lang, tgt_lang: Languages to translate from and into, which must be the model's. A model with several
            directions needs `tgt_lang`, the name of the task, or text that begins with a tag, such as "<2de>".
        split_sentences: Translate texts sentence by sentence (the default); a line feed ends a sentence, and white
            space between sentences stays as it is; in Chinese and Japanese, a line has none. With a keyword that
            applies to a single sentence, such as `return_scores` or, in beam search, `num_return_sequences`, each text
            is translated as one, as with False; parts of a text of several sentences may then be missing, and a warning
            says so.
        clean_up_tokenization_spaces: Remove spaces before punctuation, as the tokenizer's method does.
        return_tensors: Return "translation_token_ids", without padding, instead of the text.
        return_text: Return "translation_text" as well.
        return_scores: Return the fields of `TranslationScore` as well: how probable the model finds the
            translation, and each of its words.
        return_alignment: As `return_scores`, and return "alignment": the source word that each word translates.
        decoder_input_ids: `[1, prefix]`, tokens with which all translations begin. Other keywords are passed to
            `generate`.
        engine, force_words: Available only in the pipeline of the package vaswani_transformer.

    Raises:
        TypeError: An input is not text.
        ValueError: The model translates another pair of languages, or the target language is ambiguous; or a text has
            a lone surrogate.
        ImportError: An option needs the package, but this code runs without it.
    """

    engine: SearchEngine | None = None

    def __init__(self, *args: Any, engine: str | None = None, **kwargs: Any) -> None:
        _require_package("engine", engine)
        super().__init__(*args, **kwargs)
        match = _LANGUAGE_PAIR.fullmatch(self.task or "")
        languages = self.defaults[0].setdefault("languages", match.groups() if match else (None, None))
        direction_tag(self.model, self.tokenizer, *languages)  # refuses languages that are not the model's

    def score(
        self,
        sources: str | Sequence[Any],
        targets: str | Sequence[str],
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ) -> list[dict[str, Any]]:
        """Score given translations, each as a whole and as it is written, in batches.

        Args:
            sources: Texts, as the pipeline takes them.
            targets: A translation of each.
            src_lang, tgt_lang: As for the pipeline.

        Returns:
            For each pair the fields of `TranslationScore`, with the length penalty of the pipeline's search.

        Raises:
            TypeError: A source or a target is not text.
            ValueError: The numbers of sources and targets differ; the tokenizer cannot encode targets; or as for the
                pipeline.
        """
        sources, targets = ([each] if isinstance(each, str) else list(each) for each in (sources, targets))
        if len(sources) != len(targets):
            raise ValueError(f"score: there are {len(sources)} sources and {len(targets)} targets; give one for each")
        before, options, _ = self.defaults
        languages = self.stage_options(src_lang, tgt_lang)[0]
        texts = self.preprocess(sources, **{**before, **languages})["texts"]
        targets = [require_text(text, f"target {index}") for index, text in enumerate(targets)]
        search, target_tokenizer = search_options(self.model, options), for_targets(self.tokenizer)
        scorer = TranslationScorer(self.model, self.tokenizer, search.length_penalty, search.length_penalty_type)
        with ENCODING_LOCK:
            inputs, labels = self.tokenizer(texts), target_tokenizer(text_target=targets).input_ids
        start, pad = self.model.config.decoder_start_token_id, self.tokenizer.pad_token_id
        lengths = [len(source) + len(target) for source, target in zip(inputs.input_ids, labels, strict=True)]

        def run(rows: list[int]) -> list[dict[str, Any]]:
            batch = {name: [column[row] for row in rows] for name, column in inputs.items()}
            encoded = self.tokenizer.pad(batch, return_tensors="pt").to(self.device)  # [rows, source]
            output_ids = pad_sequence([torch.tensor([start, *labels[row]]) for row in rows], True, pad)
            return [score.record for score in scorer.score(encoded, output_ids.to(self.device))]

        return in_order((rows, run(rows)) for rows in similar_length_batches(lengths, int, 4096))

    def stage_options(self, src_lang: str | None = None, tgt_lang: str | None = None, **options: Any) -> StageOptions:
        if "engine" in options:
            raise ValueError("engine: is for the constructor only; make a pipeline for each engine")
        languages = {"languages": (src_lang, tgt_lang)} if src_lang or tgt_lang else {}
        names = {"return_tensors", "return_text", "clean_up_tokenization_spaces"}
        shown = {name: options.pop(name) for name in names & options.keys()}
        return languages, options, shown

    def preprocess(self, items: list[Any], languages: tuple[str | None, str | None]) -> dict[str, list[str]]:
        texts = []
        for index, item in enumerate(items):
            pair = languages
            if isinstance(item, Mapping):  # a row of a dataset, or a client's request
                if "text" not in item:
                    raise TypeError(f'text {index}: must be a string, or a dict with "text", and has only {[*item]}')
                pair = (item.get("src_lang"), item.get("tgt_lang"))
                item = item["text"]
            tag = direction_tag(self.model, self.tokenizer, *(pair if any(pair) else languages))
            texts.append(Directions(self.model.config).tagged(require_text(item, f"text {index}"), tag))
        return {"texts": texts}

    def _forward(
        self, model_inputs: dict[str, list[str]], split_sentences: bool = True, **options: Any
    ) -> dict[str, list[list[Translation]]]:
        _require_package("force_words", options.get("force_words"))
        texts = model_inputs["texts"]
        options |= {"split_sentences": split_sentences, "engine": self.engine}
        batches = translate_in_batches(self.model, self.tokenizer, texts, **options)
        return {"translations": in_order(batches)}

    def postprocess(
        self,
        model_outputs: dict[str, list[list[Translation]]],
        return_tensors: bool = False,
        return_text: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[list[dict[str, Any]]]:
        def record(translation: Translation) -> dict[str, Any]:
            shown: dict[str, Any] = {}
            if return_tensors:
                shown["translation_token_ids"] = torch.tensor(translation.token_ids)
            if return_text or not return_tensors:
                text, clean = translation.text, self.tokenizer.clean_up_tokenization
                shown["translation_text"] = clean(text) if clean_up_tokenization_spaces else text
            return shown if translation.score is None else shown | translation.score.record

        return [list(map(record, translations)) for translations in model_outputs["translations"]]


def register_task(task: str, pipeline_class: type[GeneratingPipeline]) -> None:
    """Add a task to transformers' registry, unless it is there; the package's pipeline replaces that of remote code."""
    tasks = _pipelines.PIPELINE_REGISTRY.supported_tasks
    if task in tasks:
        classes = (pipeline_class, tasks[task]["impl"])
        is_remote, is_known_remote = (each.__module__.startswith("transformers_modules.") for each in classes)
        if is_remote or not is_known_remote:
            return
    # Not by `register_pipeline`, after which `save_pretrained` would declare the pipeline as remote code.
    tasks[task] = {"impl": pipeline_class, "pt": (AutoModelForSeq2SeqLM,), "type": "text"}


def install_translation_task(pipeline_class: type[GeneratingPipeline] = VaswaniTranslationPipeline) -> None:
    """Make `pipeline("translation")` and `pipeline("translation_en_to_de")` known to transformers.

    If transformers has its own translation task, it stays in place.
    """
    registry = _pipelines.PIPELINE_REGISTRY
    # From transformers 5.19, a list of removed tasks takes precedence over the registry.
    getattr(_pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    is_known = "translation" in registry.supported_tasks
    register_task("translation", pipeline_class)
    if is_known:
        return
    original = registry.check_task

    def check_task(task: str) -> tuple[str, dict, Any]:
        match = _LANGUAGE_PAIR.fullmatch(task)
        if match and task not in registry.supported_tasks:
            return "translation", registry.supported_tasks["translation"], match.groups()
        return original(task)

    registry.check_task = check_task


def _require_package(name: str, value: Any) -> None:
    """Raise an ImportError if an option is set that needs the package; this file may run without it."""
    if value is not None:
        raise ImportError(f"{name}: needs the package vaswani_transformer; install and import it, or leave {name} out")
