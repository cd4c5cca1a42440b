"""Translation of lines into lines of text or of JSON, as recipes/translate.py writes them."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..convert.engines import ExportedModel, engine_digest
from ..data.tables import kind_of_suffix, kind_of_table, read_table
from ..data.text_files import COMPRESSED, decode_lines, read_lines
from ..io.files import MODEL_FILES, Json, content_digest, matching_files_digest, read_json
from ..launch.processes import derived_seed
from ..model.ensemble_vaswani import Ensemble, require_same_tokens
from ..model.languages_vaswani import direction, longest_known, required_tag, split_tag, target_tag
from ..model.pipeline_vaswani import in_order, translate_in_batches
from ..model.saved_model import SavedModel
from ..model.scores_vaswani import TranslationScore
from ..options.arguments import option, refuse_unused
from .decoding_arguments import GenerationArguments


# What align.py and score.py write into config.json of a model whose translations stay the same.
_SCORE_FIELDS = ("alignment_heads", "alignment_shift", "confidence_curve", "confidence_search")


@dataclass
class TranslationOptions(GenerationArguments):
    """How lines are translated, and what is written of each."""

    target_language: str | None = option(None, "Language to translate into, of a model of both directions.")
    split_sentences: bool = option(
        True, "Translate lines sentence by sentence; if false, or with scores or the best of the beam, each as one."
    )
    return_scores: bool = option(
        False,
        "Write log-probabilities of each translation and of its words, into .jsonl, and the confidence; null where "
        "score.py --confidence has not measured it.",
    )
    return_alignment: bool = option(False, "Write these and the word alignment, in Pharaoh format, into .jsonl.")
    engine: str | None = option(
        None, "Directory of the model's export to CTranslate2 or ONNX by export.py, which then translates in its place."
    )
    ensemble: list[str] | None = option(
        None, "More saved models with the same tokenizer: the search follows the mean of all models' probabilities."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ensemble is not None:
            self.ensemble = [str(Path(each).resolve()) if Path(each).is_dir() else each for each in self.ensemble]
            for name in ("engine", "do_sample", "return_scores", "return_alignment"):
                if getattr(self, name):
                    raise ValueError(f"{name}: is of one model; leave out this option or --ensemble")
        if self.engine is not None:
            self.engine = str(Path(self.engine).resolve())  # shards may be translated from elsewhere
            names = (*self.search_settings, "precision", "return_scores", "return_alignment")
            advice = "an engine gives the best translation, by its own generation_config; leave one of the two out"
            refuse_unused(self, dict.fromkeys(names, advice))
        if self.num_beams is not None and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences: {self.num_beams} beams find no {self.num_return_sequences} translations; give "
                f"more with --num_beams"
            )

    @property
    def decisive(self) -> dict[str, Json]:
        """All options that change what is written."""
        added = {name: getattr(self, name) for name in TranslationOptions.__annotations__}
        if self.engine is not None:
            added["engine"] = engine_digest(self.engine)
        if self.ensemble is not None:
            added["ensemble"] = [self.model_digest(self.open(name, "ensemble").directory) for name in self.ensemble]
        return added | self.search_settings

    def model_digest(self, directory: Path) -> str:
        """Digest of a model's files that what is written depends on; the directory's name does not matter."""
        ignored = () if self.return_scores or self.return_alignment else _SCORE_FIELDS
        config = {name: value for name, value in read_json(directory / "config.json").items() if name not in ignored}
        files = {"generation_config.json", *MODEL_FILES} - {"config.json"}
        return f"sha256 {content_digest([config, matching_files_digest(directory, sorted(files))])}"

    def open_ensemble(self, saved: SavedModel) -> list[SavedModel]:
        """Check the models that translate together with `saved`.

        Raises:
            ValueError: One of them, or `saved`, is of another package, or their tokens or languages differ.
        """
        members = [self.open(name, "ensemble") for name in self.ensemble or ()]
        if members and saved.config.model_type != "vaswani":
            raise ValueError(f"{saved.place}: is of another package; an ensemble has models of this one")
        for member in members:
            require_same_tokens(saved.config, member.config, f"{member.place}:")
            if _tokens(member.tokenizer) != _tokens(saved.tokenizer):
                raise ValueError(
                    f"{member.place}: has another tokenizer than --model; train the models of an ensemble with the "
                    "same corpus, vocab_size and min_frequency, or with --tokenizer"
                )
        return members


def _tokens(tokenizer: PreTrainedTokenizerBase) -> object:
    """What decides how text is encoded; of tokenizers in Python, their entries."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return (type(tokenizer), tokenizer.get_vocab()) if backend is None else backend.to_str()


class Translator:
    """Translates lists of lines, with a model that is loaded once.

    Args:
        saved: The model.
        options: How to translate.
        columns: Names of source and target in JSON, without the source's tag, which training adds itself; by default,
            the result is text and has no source.

    Attributes:
        long: Number of lines so far that are longer than any source trained on.
    """

    def __init__(self, saved: SavedModel, options: TranslationOptions, columns: tuple[str, str] | None = None) -> None:
        self.tokenizer = saved.tokenizer
        self._generate_kwargs = options.generate_kwargs
        if members := options.open_ensemble(saved):
            self._generate_kwargs["custom_generate"] = Ensemble([options.load(member) for member in members])
        self.model: PreTrainedModel | ExportedModel
        if options.engine is None:
            self.model = options.load(saved)
        else:
            self.model = ExportedModel(options.engine, saved.config, saved.tokenizer, PartialState().device)
        self.long = 0
        self._options, self._columns = options, columns

    def translate(self, number: int, lines: list[str], bar: tqdm | None = None) -> list[bytes]:
        """Translate a list of lines, stripped of white space as in training.

        Args:
            number: What is sampled depends on this number and the seed, not on the process or on other lists.
            lines: The lines.
            bar: Counts the lines.

        Returns:
            For each line in order, a line for each of its `num_return_sequences` translations, line feed included. With
            `return_scores` and `columns`, it has the fields of `TranslationScore`, too.
        """
        options, config = self._options, self.model.config
        torch.manual_seed(derived_seed(options.seed, number))
        sentences = [line.strip() for line in lines]
        sources = sentences if self._columns is None else [split_tag(config, sentence)[1] for sentence in sentences]

        def counted() -> Iterator[tuple[list[int], list[list[str]]]]:
            for batch in translate_in_batches(
                self.model,
                self.tokenizer,
                sentences,
                options.tokens_per_batch,
                observe_long=self._count,
                target_language=options.target_language,
                split_sentences=options.split_sentences,
                return_scores=options.return_scores,
                return_alignment=options.return_alignment,
                **self._generate_kwargs,
            ):
                yield batch
                if bar is not None:
                    bar.update(len(batch[0]))

        translations = zip(sources, in_order(counted()), strict=True)
        return [_record(source, each, self._columns) for source, found in translations for each in found]

    def _count(self, lengths: dict[int, int]) -> None:
        self.long += len(lengths)

    def warn_of_long_lines(self) -> None:
        """Say on standard error how many lines are longer, or hold a longer sentence, than all sources trained on."""
        if self.long:
            print(
                f"{self.long} lines have sentences with more tokens than the longest sentence trained on, "
                f"{longest_known(self.model.config)}; parts of them may be untranslated; divide these sentences",
                file=sys.stderr,
            )


def _record(source: str, found: str | tuple[str, TranslationScore], columns: tuple[str, str] | None) -> bytes:
    target, score = found if isinstance(found, tuple) else (found, None)
    # One line for every tool, because some take U+2028 and similar characters for line ends.
    source, target = (" ".join(text.splitlines()) for text in (source, target))
    if columns is not None:
        facts = {} if score is None else score.line
        target = json.dumps({columns[0]: source, columns[1]: target, **facts}, ensure_ascii=False)
    return target.encode() + b"\n"


def split_lines(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines; only one list is in memory."""
    rest = iter(lines)
    while shard := list(islice(rest, size)):
        yield shard


def source_column(config: PreTrainedConfig, target_language: str | None) -> str:
    """Name of the column to translate, of a table: the model's source language; "source" if it states none."""
    return direction(config, target_tag(config, None, target_language))[0] or "source"


def input_lines(name: str, column: str | None, source: str) -> Iterator[str]:
    """The lines to translate, read as they come.

    Args:
        name: Text, or a table as in training, by its suffix; "-" for standard input.
        column: Of a table; None for `source`.
        source: The model's name of its column.

    Raises:
        ValueError, OSError: There is no such file, it can be read only once, it is damaged, or text has no columns.
    """
    kind = None if name == "-" else kind_of_table(Path(name), must_be_table=False)
    if kind is None and column is not None:
        raise ValueError(f"column: {name} is text, by its name; leave the option out, or name a table such as .jsonl")
    if name == "-":
        yield from decode_lines(sys.stdin.buffer, Path("standard input"))
    elif kind is None:
        yield from read_lines(Path(name))
    else:
        column = column or source
        for text, _ in read_table(Path(name), kind, (column, column), "train", (column, column)):
            yield text.replace("\n", " ")  # a row stays a line


def require_input(name: str) -> Path:
    """The path of a file that can be read repeatedly; raises a ValueError or OSError if it is not one."""
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(f"input: there is no file {path}")
    if not path.is_file() and not path.is_dir():
        raise ValueError(f"input: {path} can be read only once; give it as standard input")
    return path


def require_output(path: Path, source: Path | None) -> None:
    """Raise a ValueError or OSError unless a file other than `source` can be written at `path`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"output: there is no directory {path.parent}; make it")
    if path.exists() and not path.is_file():
        raise ValueError(f"output: {path} is not a file; give one, or - for standard output")
    if path.exists() and source is not None and path.samefile(source):
        raise ValueError(f"output: {path} is the input too; name another file")
    if path.suffix in COMPRESSED or kind_of_suffix(path) not in (None, "json"):
        raise ValueError(f"output: {path} would hold lines of text; name a file that does not end in {path.suffix}")


def output_columns(path: Path, config: PreTrainedConfig, target_language: str | None) -> tuple[str, str] | None:
    """Names of the columns of source and target, of an output in JSON; None of one in text.

    Raises:
        ValueError: The model does not translate into the language; or it has several directions, and the columns need
            the language.
    """
    if kind_of_suffix(path) != "json":
        target_tag(config, None, target_language)  # refuses a language that is not the model's
        return None
    source, target = direction(config, required_tag(config, target_language))
    return source or "source", target or "target"
