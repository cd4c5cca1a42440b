"""Where sentence pairs come from: two aligned text files, JSON lines, Parquet, the Hub, or the embedded phrasebook.

Whatever the source, a corpus is a memory-mapped `datasets.Dataset` of rows `{"translation": {"en": ..., "de": ...}}`.
"""

import gzip
import itertools
import json
import lzma
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from datasets import Dataset, Features, Translation, load_dataset
from datasets.exceptions import DatasetsError
from pyarrow import ArrowException, parquet

from .phrasebook import phrasebook


_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_JSON_LINES = (".json", ".jsonl")
_LONGEST_LINE = 1 << 26  # bytes; a small archive may unpack to more than the memory holds

# What reading a damaged file raises, wherever the damage is: also texts that are not UTF-8, and unknown types.
PARQUET_ERRORS = (ValueError, OSError, TypeError, KeyError, MemoryError, ArrowException, DatasetsError)

Row = dict[str, dict[str, str]]
Item = TypeVar("Item")


def load_parallel_corpus(
    source: str | Sequence[str],
    source_language: str,
    target_language: str,
    split: str = "train",
    config_name: str | None = None,
    num_proc: int | None = None,
) -> Dataset:
    """Load a parallel corpus.

    Args:
        source: Two names: aligned text files (plain, .gz or .xz), source and target, one sentence a line. One name: a
            file of JSON lines (also .gz, .xz) or Parquet; "phrasebook", the embedded English-German corpus; or a
            dataset of the Hub. Tables have a column "translation" of the languages' texts, or a column a language; a
            null in them is an empty sentence.
        source_language: Code of the source language, such as "en".
        target_language: Code of the target language.
        split: Which part of the phrasebook ("train", "validation", "test") or of a Hub dataset.
        config_name: Configuration of a Hub dataset, such as "de-en" of "wmt14".
        num_proc: Processes that convert a table of Parquet or of the Hub.

    Raises:
        ValueError: The files are not aligned, not UTF-8, damaged, lack a language, or hold nothing. The message names
            the file and, where there is one, the line.
        OSError: A file is missing.
    """
    languages = (source_language, target_language)
    names = check_names(source, languages)
    if len(names) == 2:
        return _from_text(Path(names[0]), Path(names[1]), languages)
    if names[0] == "phrasebook":
        return _from_phrasebook(split, languages)
    return _from_one(names[0], languages, split, config_name, num_proc)


def check_names(source: str | Sequence[str], languages: Sequence[str]) -> list[str]:
    """The one or two names of a corpus, as `load_parallel_corpus` takes them.

    Raises:
        ValueError: There are more or fewer, or both languages are the same.
    """
    names = [source] if isinstance(source, str) else list(source)
    if languages[0] == languages[1]:
        raise ValueError(f"source_language, target_language: both are {languages[0]!r}; name two languages")
    if len(names) not in (1, 2):
        raise ValueError(f"a corpus is one file or dataset, or two aligned text files, not {len(names)}: {names}")
    return names


def open_binary(path: Path) -> BinaryIO:
    """Open a plain, .gz or .xz file for reading bytes."""
    return _OPENERS.get(path.suffix, open)(path, "rb")  # type: ignore[operator]


def read_lines(path: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, as `decode_lines` finds them."""
    with open_binary(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: BinaryIO, name: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, split at line feeds only, as every tool that aligned them counts lines.

    Args:
        file: Read as it goes.
        name: What messages call it.

    Raises:
        ValueError: A line is not UTF-8 or has more than 64 MiB, or the file is not the archive its suffix promises.
    """
    number = 0
    try:
        for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), b""), start=1):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"{name}, line {number}: has more than {_LONGEST_LINE:,} bytes; is it text?")
            encoding = "utf-8-sig" if number == 1 else "utf-8"  # Windows marks the beginning of a file
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError(
            f"{name}, after line {number}: not a whole {name.suffix} file ({error}); fetch or make it again"
        ) from None


def count_aligned_lines(source: Path, target: Path) -> int:
    """The number of lines that both files have.

    Everything is read, so that a bad line at the end is reported before anything else is begun.

    Raises:
        ValueError: They have different numbers of lines, or none, or as `decode_lines`.
        OSError: A file is missing, or a directory.
    """
    for path in (source, target):
        require_file(path)
    lengths = [sum(1 for _ in read_lines(path)) for path in (source, target)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{source} has {lengths[0]} lines but {target} has {lengths[1]}; "
            f"line n of one must translate line n of the other"
        )
    require_rows(lengths[0], str(source), str(target))
    return lengths[0]


def _from_text(source: Path, target: Path, languages: Sequence[str]) -> Dataset:
    return _from_reader(_read_text, count_aligned_lines(source, target), (source, target), languages)


def _read_text(paths: Sequence[str], languages: Sequence[str], versions: Any = None) -> Iterator[Row]:
    for pair in zip(*(read_lines(Path(path)) for path in paths), strict=True):
        yield {"translation": dict(zip(languages, pair, strict=True))}


def _from_json_lines(path: Path, languages: Sequence[str]) -> Dataset:
    length = sum(1 for _ in read_json_lines((str(path),), languages))  # ahead, as in _from_text
    return _from_reader(read_json_lines, length, (path,), languages)


def read_json_lines(paths: Sequence[str], languages: Sequence[str], versions: Any = None) -> Iterator[Row]:
    """The rows of one file of JSON lines; `versions` only makes a key of the cache.

    Raises:
        ValueError: A line is no object of texts in the languages; the message has its number.
    """
    for number, line in enumerate(read_lines(Path(paths[0])), start=1):
        if line.strip():
            try:
                yield {"translation": _pair_of_json(line, languages)}
            except ValueError as error:
                raise ValueError(f"{paths[0]}, line {number}: {error}") from None


def _pair_of_json(line: str, languages: Sequence[str]) -> dict[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, column {error.colno}); write one object a line") from None
    except RecursionError:
        raise ValueError("JSON nested too deeply; write one object of texts a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"no object of texts by language, such as {json.dumps(dict.fromkeys(languages, '...'))}")
    return pair_of_row(row, languages)


def pair_of_row(row: dict[str, Any], languages: Sequence[str]) -> dict[str, str]:
    """The texts of a row by language, "" for a null.

    Raises:
        ValueError: There is no text in one of the languages, or something else.
    """
    texts = row["translation"] if isinstance(row.get("translation"), dict) else row
    _require_languages(languages, list(texts))
    pair = {language: "" if texts[language] is None else texts[language] for language in languages}
    for language, text in pair.items():
        if not isinstance(text, str):
            raise ValueError(f"the text in {language!r} is not a string: {reprlib.repr(text)}")
        text.encode()  # JSON can spell half of a surrogate pair, which is no text
    return pair


def _from_reader(
    read: Callable[..., Iterator[Row]], length: int, paths: Sequence[Path], languages: Sequence[str]
) -> Dataset:
    """The rows that `read(paths, languages)` yields, written to the cache of `datasets` once for each version."""
    require_rows(length, *map(str, paths))
    return Dataset.from_generator(
        read,
        features=_features(languages),
        gen_kwargs={
            # Links are not resolved: what they point to need not have the suffix.
            "paths": tuple(str(path.absolute()) for path in paths),
            "languages": tuple(languages),
            # Part of the cache's key: a file that changed is read again.
            "versions": tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in paths),
        },
    )


def _from_phrasebook(split: str, languages: Sequence[str]) -> Dataset:
    if set(languages) != {"en", "de"}:
        raise ValueError(f"the phrasebook is English-German (en, de), not {'-'.join(languages)}")
    rows = [{"translation": {"en": english, "de": german}} for english, german in phrasebook(split)]
    return Dataset.from_list(rows, features=_features(languages))


def _from_one(
    name: str, languages: Sequence[str], split: str, config_name: str | None, num_proc: int | None
) -> Dataset:
    kind = kind_of_table(name)
    if kind == "json":
        return _from_json_lines(Path(name), languages)
    table = _load_parquet(name) if kind == "parquet" else load_from_hub(name, config_name, split)
    return _from_table(table, name, languages, num_proc)


def kind_of_table(name: str) -> Literal["json", "parquet", "hub"]:
    """What the one name of a corpus stands for.

    Raises:
        ValueError: A file of another kind.
        OSError: The name is that of such a file, but there is none, or a directory.
    """
    path = Path(name)
    suffix = path.with_suffix("").suffix if path.suffix in _OPENERS else path.suffix
    if suffix in _JSON_LINES or path.suffix == ".parquet" or path.exists():
        require_file(path)
    if suffix in _JSON_LINES:
        return "json"
    if path.suffix == ".parquet":
        return "parquet"
    if path.exists():
        raise ValueError(f"{name}: one file must be JSON lines or Parquet; for plain text give two aligned files")
    return "hub"


def load_from_hub(name: str, config_name: str | None, split: str, **kwargs: Any) -> Any:
    """`datasets.load_dataset`.

    Raises:
        FileNotFoundError: There is no such dataset, or no way to reach it.
    """
    try:
        return load_dataset(name, config_name, split=split, **kwargs)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(f"{name}: neither a file nor a dataset of the Hub within reach ({error})") from None
    except (ValueError, DatasetsError) as error:  # also for a name that no dataset can have
        raise ValueError(f"{name}: not a dataset that can be loaded ({error})") from None


def _load_parquet(name: str) -> Dataset:
    try:
        rows = parquet.read_metadata(name).num_rows
        table = load_dataset("parquet", data_files=name, split="train") if rows else None
    except PARQUET_ERRORS as error:
        raise ValueError(f"{name}: not a whole Parquet file ({error}); fetch or make it again") from None
    require_rows(rows, name)
    return table


def _from_table(table: Dataset, name: str, languages: Sequence[str], num_proc: int | None) -> Dataset:
    require_rows(len(table), name)
    table = table.flatten()
    nested = [column for column in table.column_names if column.startswith("translation.")]
    columns = {column.removeprefix("translation."): column for column in nested or table.column_names}
    try:
        _require_languages(languages, list(columns))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    for language in languages:
        kind = str(table.features.arrow_schema.field(columns[language]).type)
        if kind not in ("string", "large_string"):
            raise ValueError(f"{name}: the texts in {language!r} are not strings but of type {kind}")

    def join(*sides: list[str | None]) -> dict[str, list[dict[str, str]]]:
        pairs = zip(*([text or "" for text in side] for side in sides), strict=True)
        return {"translation": [dict(zip(languages, pair, strict=True)) for pair in pairs]}

    try:
        return table.map(
            join,
            batched=True,
            input_columns=[columns[language] for language in languages],
            remove_columns=table.column_names,
            features=_features(languages),
            num_proc=num_proc,
            desc="Joining columns",
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: a text is not UTF-8 ({error.reason}); make the table again") from None


def _features(languages: Sequence[str]) -> Features:
    return Features({"translation": Translation(languages=sorted(languages))})


def _require_languages(languages: Sequence[str], available: Sequence[str]) -> None:
    for language in languages:
        if language not in available:
            raise ValueError(f"there is no text in language {language!r}, only {', '.join(available) or 'nothing'}")


def require_rows(count: int, *names: str) -> None:
    if count == 0:
        raise ValueError(f"{' and '.join(names)}: the corpus is empty; give files with at least one sentence pair")


def require_file(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a directory; name the files in it")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        pairs = batch["translation"]
        yield from itertools.chain.from_iterable((pair[language] for language in languages) for pair in pairs)


def evenly(items: Iterable[Item], length: int, count: int) -> Iterator[Item]:
    """`count` of the items, or all if there are fewer, spread over the whole: the same whenever it is asked.

    Args:
        items: As many as `length`.
        length: How many there are.
        count: How many to choose.
    """
    return (item for index, item in enumerate(items) if index * count % length < count)
