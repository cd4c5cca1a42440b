"""`pipeline("translation")`, which transformers 5 removed, and translation in batches of similar length."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice, zip_longest
from operator import itemgetter
from types import GeneratorType
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    AutoModelForSeq2SeqLM,
    BatchEncoding,
    Pipeline,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers import pipelines as _pipelines
from transformers.generation.logits_process import LogitsProcessor
from transformers.utils import logging

from .generation_vaswani import paper_generation_config, search_options
from .languages_vaswani import (
    ENCODING_LOCK,
    Directions,
    Paragraph,
    change_case,
    has_words,
    require_text,
    split_paragraphs,
)
from .scores_vaswani import AlignmentHeads, TranslationScore, TranslationScorer, for_direction
from .search_options_vaswani import LENGTH_FIELDS, SearchOptions, similar_length_batches


logger = logging.get_logger(__name__)

Result = TypeVar("Result")
StageOptions: TypeAlias = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # for a pipeline's three stages

_LANGUAGE_PAIR = re.compile(r"translation_([\w-]+)_to_([\w-]+)")

# Keywords that apply to a single sentence, or restrict `generate` to one at a time.
_ONE_SENTENCE_ONLY = ("decoder_input_ids", "streamer", "assistant_model", "prompt_lookup_num_tokens")

# Confidence is unreliable for a text if a larger share of its translations lies outside the measured range; for text of
# the same kind, the share is about 0.05. With fewer sentences, it says little.
UNLIKE, _ENOUGH = 0.15, 20

# Keywords of `generate` that `SearchOptions` has, or that change no translation.
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


class SearchEngine(Protocol):
    """Searches in place of a model; a call may have the sentences of several `batches`, which it divides itself."""

    batches: int

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        """As `generate` of the model."""


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
        _tag(self.model, self.tokenizer, *languages)  # refuses languages that are not the model's

    def score(
        self, sources: str | Sequence[Any], targets: str | Sequence[str], **languages: str | None
    ) -> list[dict[str, Any]]:
        """Score given translations, each as a whole, in batches.

        Args:
            sources: Texts, as the pipeline takes them.
            targets: A translation of each.
            languages: `src_lang` and `tgt_lang`, as for the pipeline.

        Returns:
            For each pair the fields of `TranslationScore`, as `return_scores` returns them.

        Raises:
            TypeError: A source or a target is not text.
            ValueError: The numbers of sources and targets differ; or as for the pipeline.
        """
        sources, targets = ([each] if isinstance(each, str) else list(each) for each in (sources, targets))
        if len(sources) != len(targets):
            raise ValueError(f"score: there are {len(sources)} sources and {len(targets)} targets; give one for each")
        texts = self.preprocess(sources, **{**self.defaults[0], **self.stage_options(**languages)[0]})["texts"]
        targets = [require_text(text, f"target {index}") for index, text in enumerate(targets)]
        search = search_options(self.model, {})
        scorer = TranslationScorer(self.model, self.tokenizer, search.length_penalty, search.length_penalty_type)
        with ENCODING_LOCK:
            inputs, labels = self.tokenizer(texts), self.tokenizer(text_target=targets).input_ids
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
            tag = _tag(self.model, self.tokenizer, *(pair if any(pair) else languages))
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


def in_order(batches: Iterable[tuple[list[int], list[Result]]]) -> list[Result]:
    """Put the results of all batches in order; each batch has indices, and a result for each."""
    results = {index: result for indices, each in batches for index, result in zip(indices, each, strict=True)}
    return [result for _, result in sorted(results.items(), key=itemgetter(0))]


def register_task(task: str, pipeline_class: type[GeneratingPipeline]) -> None:
    """Add a task to transformers' registry."""
    # Not by `register_pipeline`, after which `save_pretrained` would declare the pipeline as remote code.
    entry = {"impl": pipeline_class, "pt": (AutoModelForSeq2SeqLM,), "type": "text"}
    _pipelines.PIPELINE_REGISTRY.supported_tasks[task] = entry


def install_translation_task(pipeline_class: type[GeneratingPipeline] = VaswaniTranslationPipeline) -> None:
    """Make `pipeline("translation")` and `pipeline("translation_en_to_de")` known to transformers.

    If transformers has its own translation task, it stays in place.
    """
    registry = _pipelines.PIPELINE_REGISTRY
    # From transformers 5.19, a list of removed tasks takes precedence over the registry.
    getattr(_pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    known = registry.supported_tasks.get("translation")
    if known is not None:
        # The package's pipeline takes the place of the one in a model's own code, which has fewer options.
        is_code_of_a_model = known["impl"].__module__.startswith("transformers_modules.")
        if is_code_of_a_model and not pipeline_class.__module__.startswith("transformers_modules."):
            register_task("translation", pipeline_class)
        return
    register_task("translation", pipeline_class)
    original = registry.check_task

    def check_task(task: str) -> tuple[str, dict, Any]:
        match = _LANGUAGE_PAIR.fullmatch(task)
        if match and task not in registry.supported_tasks:
            return "translation", registry.supported_tasks["translation"], match.groups()
        return original(task)

    registry.check_task = check_task


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
    it has more tokens so, and its translation's text is in capitals. A sentence without words, such as "-" or "14:35",
    is its own translation; these, and the empty translations of blank sentences, come last.

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
    directions, tag = Directions(model.config), _tag(model, tokenizer, None, target_language)
    texts = [directions.tagged(require_text(text, f"text {index}"), tag) for index, text in enumerate(sentences)]
    search, scorer, paragraphs = search_options(model, generate_kwargs), None, None
    if return_scores or return_alignment:
        heads = AlignmentHeads.for_model(model) if return_alignment else None
        scorer = _scorer(model, tokenizer, search, heads, generate_kwargs)
    if split_sentences:
        requested = {"return_alignment": return_alignment, "return_scores": return_scores}
        obstacles = [*_obstacles(search, generate_kwargs), *(name for name, is_set in requested.items() if is_set)]
        paragraphs = split_paragraphs(directions, texts, obstacles, logger.warning_once)
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
        copied = [index for index, text in enumerate(bare) if not has_words(text)]
        # A streamer, a prefix and forced words see the tokens of the search themselves.
        is_plain = not _obstacles(replace(self.search, num_return_sequences=1), options)
        lowered = self._lowered(sentences) if is_plain else {}
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
        if len(self._is_unlike) >= _ENOUGH and sum(self._is_unlike) > UNLIKE * len(self._is_unlike):
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
        """Lower-case forms of the sentences in capitals that have no more tokens so, by index."""
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
    heads: AlignmentHeads | None,
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


def _require_package(name: str, value: Any) -> None:
    """Raise an ImportError if an option is set that needs the package; this file may run without it."""
    if value is not None:
        raise ImportError(f"{name}: needs the package vaswani_transformer; install and import it, or leave {name} out")


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
    # Tokenizers in pure Python have no encodings, and cut off nothing by default.
    cut_off = [sum(part.special_tokens_mask.count(0) for part in row.overflowing) for row in encoded.encodings or ()]
    if longest is not None and any(sum(both) > longest for both in zip_longest(lengths, cut_off, fillvalue=0)):
        logger.warning_once(
            f"a sentence is longer than any training sentence ({longest} tokens), so part of it may be missing from "
            "the translation; split it"
        )


def _tag(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None
) -> str | None:
    """As `Directions.tag`; also raises a ValueError if the tokenizer, such as NLLB's, sets languages itself."""
    if (source or target) and hasattr(tokenizer, "set_src_lang_special_tokens"):
        raise ValueError(
            f"src_lang, tgt_lang: {type(tokenizer).__name__} sets languages itself; set `tokenizer.src_lang` and pass "
            "`forced_bos_token_id`"
        )
    return Directions(model.config).tag(source, target)
