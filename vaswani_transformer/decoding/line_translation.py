"""Translation of the lines of a file into lines of text or of JSON, as recipes/translate.py writes them."""

import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedConfig

from ..data.tables import read_table, table_kind
from ..data.text_files import COMPRESSED, decode_lines, read_lines
from ..engines.exported_model import ExportedModel, engine_identity
from ..model.languages_vaswani import Directions
from ..model.translation_vaswani import Translation, translate_in_batches
from ..options.decoding import TranslationArguments
from ..system.files import require_new_file
from ..system.messages import errors_begin_with
from ..system.processes import derived_seed
from .ensemble import Ensemble, require_same_tokens
from .phrases import with_forced_words
from .saved_model import SavedModel, open_model


def open_models(options: TranslationArguments) -> list[SavedModel]:
    """Check the model and the other models of the ensemble, without reading their weights.

    Raises:
        ValueError: The model does not translate into the language, the tokens of the ensemble's models differ, or there
            is no such engine.
    """
    if options.engine is not None:
        engine_identity(options.engine)  # refuses a name that is no engine
    # The search of other models has neither ensembles nor forced words.
    model_type = "vaswani" if options.ensemble or options.force_words else None
    check = partial(open_model, task="translation", model_type=model_type, trust_remote_code=options.trust_remote_code)
    saved = check(options.model)
    Directions(saved.config).tag(None, options.target_language)  # refuses a language that is not the model's
    members = [check(name, option="ensemble") for name in options.ensemble or ()]
    for member in members:
        require_same_tokens(saved.config, member.config, f"{member.place}:")
        if member.tokenizer.get_vocab() != saved.tokenizer.get_vocab():
            raise ValueError(
                f"{member.place}: has another tokenizer than --model; train the models of an ensemble with the "
                "same corpus, vocab_size and min_frequency, or with --tokenizer"
            )
    return [saved, *members]


def require_output(options: TranslationArguments, overwrite: bool) -> None:
    """Raise a ValueError unless lines can be written to the output, a file."""
    path = Path(options.output)
    require_new_file("output", path, overwrite)
    if path.suffix.lower() in COMPRESSED or table_kind(path) not in (None, "json"):
        raise ValueError(f"output: {path} would hold lines of text; name a file that does not end in {path.suffix}")
    if path.exists() and Path(options.input).exists() and path.samefile(options.input):
        raise ValueError(f"output: {path} is the input too; name another file")


def source_lines(options: TranslationArguments, config: PreTrainedConfig) -> Iterator[str]:
    """The lines to translate, read lazily; in a table, each row has one, in the column of `config`'s language.

    Raises:
        ValueError, OSError: The file is missing or damaged, a column is named for text, or a line lacks the tag of its
            target language, or begins with another.
    """
    path, directions = Path(options.input), Directions(config)
    kind = None if options.input == "-" else table_kind(path)
    if kind is None and options.column is not None:
        raise ValueError(f"column: {path} is text, by its name; leave it out, or name a table such as .jsonl")
    tag = directions.tag(None, options.target_language)
    if options.input == "-":
        lines, place = decode_lines(sys.stdin.buffer, Path("standard input")), "standard input, line"
    else:
        path.stat()  # a missing file is an error now, before the model is loaded
        lines, place = read_lines(path), f"{path}, line"
    if kind is not None:
        column = options.column or directions.languages(tag)[0] or "source"
        lines, place = (text.replace("\n", " ") for text, _ in read_table(path, (column, column))), f"{path}, sentence"
    return _with_valid_tags(lines, directions, tag, place)


def _with_valid_tags(lines: Iterable[str], directions: Directions, tag: str | None, place: str) -> Iterator[str]:
    """The lines as they are; the error for an unknown or missing tag names the line."""
    for number, line in enumerate(lines, start=1):
        with errors_begin_with(f"{place} {number}"):
            directions.tagged(line, tag)
        yield line


class LineTranslator:
    """Translates lists of lines, with models that are loaded once.

    Args:
        models: The model, followed by the other models of an ensemble.
        options: Options of translation.

    Attributes:
        calls: Number of threads that should call `translate` at the same time.

    Raises:
        ValueError: The output is JSON, and no target language is named for a model with several directions.
    """

    def __init__(self, models: list[SavedModel], options: TranslationArguments) -> None:
        saved, *ensemble = models
        self._options, self._tokenizer = options, saved.tokenizer
        self._directions = Directions(saved.config)
        self._columns: tuple[str, str] | None = None  # for source and target in JSON
        if options.writes_json:
            tag = self._directions.tag(None, options.target_language, is_required=True)
            source, target = self._directions.languages(tag)
            self._columns = source or "source", target or "target"
        self.model = saved.load_to_decode(options.precision)
        self._generate_kwargs = with_forced_words(options.generate_kwargs, saved.tokenizer)
        self.calls, self._is_stopped = 1, False
        if options.engine is not None:
            engine = self._generate_kwargs["engine"] = ExportedModel(options.engine, self.model, saved.tokenizer)
            self.calls = engine.calls
        if ensemble:
            members = [each.load_to_decode(options.precision) for each in ensemble]
            self._generate_kwargs["custom_generate"] = Ensemble(members)

    def stop(self) -> None:
        """End `translate` in other threads after the batch at work; its lines are lost."""
        self._is_stopped = True

    def translate(self, number: int, lines: list[str], bar: tqdm | None = None) -> list[bytes]:
        """Translate a list of lines, stripped of white space as in training.

        Samples depend on the `number` of the list and the seed, not on the process or on other lists. The `bar` counts
        the lines.

        Returns:
            For each line in order, a line for each of its `num_return_sequences` translations, line feed included.
        """
        options = self._options
        torch.manual_seed(derived_seed(options.seed, number))
        sources = [line.strip() for line in lines]
        ranked: dict[int, list[Translation]] = {}
        for indices, translations in translate_in_batches(
            self.model,
            self._tokenizer,
            sources,
            options.tokens_per_batch,
            target_language=options.target_language,
            split_sentences=options.split_sentences,
            return_scores=options.return_scores,
            return_alignment=options.return_alignment,
            **self._generate_kwargs,
        ):
            if self._is_stopped:
                raise CancelledError
            ranked |= zip(indices, translations, strict=True)
            if bar is not None:
                bar.update(len(indices))
        return [self._line(source, each) for index, source in enumerate(sources) for each in ranked[index]]

    def _line(self, source: str, translation: Translation) -> bytes:
        """The line of a translation: its text; or JSON with the scores, and the source without a language tag."""
        text = as_one_line(translation.text)
        if self._columns is not None:
            source_column, target_column = self._columns
            record = {source_column: as_one_line(self._directions.split(source)[1]), target_column: text}
            scores = translation.score.line if translation.score else {}
            text = json.dumps({**record, **scores}, ensure_ascii=False)
        return text.encode() + b"\n"


def as_one_line(text: str) -> str:
    """Replace U+2028 and similar characters, which some tools take for line ends."""
    return " ".join(text.splitlines())
