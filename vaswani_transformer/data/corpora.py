"""Where sentence pairs come from: two aligned text files, JSON lines, Parquet, the Hub, or the embedded phrasebook.

Whatever the source, a corpus is a memory-mapped `datasets.Dataset` of rows `{"translation": {"en": ..., "de": ...}}`.
"""

import gzip
import itertools
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from datasets import Dataset, Features, Translation, load_dataset
from datasets.exceptions import DatasetGenerationError
from pyarrow import ArrowInvalid, parquet

from .phrasebook import phrasebook


_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_JSON_LINES = (".json", ".jsonl")

Row = dict[str, dict[str, str]]


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
    names = [source] if isinstance(source, str) else list(source)
    languages = (source_language, target_language)
    if source_language == target_language:
        raise ValueError(f"source_language, target_language: both are {source_language!r}; name two languages")
    if len(names) == 2:
        return _from_text(Path(names[0]), Path(names[1]), languages)
    if len(names) != 1:
        raise ValueError(f"a corpus is one file or dataset, or two aligned text files, not {len(names)}: {names}")
    if names[0] == "phrasebook":
        return _from_phrasebook(split, languages)
    return _from_one(names[0], languages, split, config_name, num_proc)


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
        ValueError: A line is not UTF-8, or the file is not the archive its suffix promises.
    """
    number = 0
    try:
        for number, line in enumerate(file, start=1):
            encoding = "utf-8-sig" if number == 1 else "utf-8"  # Windows marks the beginning of a file
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError(
            f"{name}, after line {number}: not a whole {name.suffix} file ({error}); fetch or make it again"
        ) from None


def _from_text(source: Path, target: Path, languages: Sequence[str]) -> Dataset:
    for path in (source, target):
        _require(path)
    # Everything is read once ahead, so that a bad line at the end is reported before anything else is begun.
    lengths = [sum(1 for _ in read_lines(path)) for path in (source, target)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{source} has {lengths[0]} lines but {target} has {lengths[1]}; "
            f"line n of one must translate line n of the other"
        )
    return _from_reader(_read_text, lengths[0], (source, target), languages)


def _read_text(paths: Sequence[str], languages: Sequence[str], versions: Any = None) -> Iterator[Row]:
    for pair in zip(*(read_lines(Path(path)) for path in paths), strict=True):
        yield {"translation": dict(zip(languages, pair, strict=True))}


def _from_json_lines(path: Path, languages: Sequence[str]) -> Dataset:
    length = sum(1 for _ in _read_json_lines((str(path),), languages))  # ahead, as in _from_text
    return _from_reader(_read_json_lines, length, (path,), languages)


def _read_json_lines(paths: Sequence[str], languages: Sequence[str], versions: Any = None) -> Iterator[Row]:
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
    if not isinstance(row, dict):
        raise ValueError(f"no object of texts by language, such as {json.dumps(dict.fromkeys(languages, '...'))}")
    texts = row["translation"] if isinstance(row.get("translation"), dict) else row
    _require_languages(languages, list(texts))
    pair = {language: "" if texts[language] is None else texts[language] for language in languages}
    for language, text in pair.items():
        if not isinstance(text, str):
            raise ValueError(f"the text in {language!r} is not a string: {text!r}")
        text.encode()  # JSON can spell half of a surrogate pair, which is no text
    return pair


def _from_reader(
    read: Callable[..., Iterator[Row]], length: int, paths: Sequence[Path], languages: Sequence[str]
) -> Dataset:
    """The rows that `read(paths, languages)` yields, written to the cache of `datasets` once for each version."""
    _require_rows(length, *map(str, paths))
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
    path = Path(name)
    kind = path.with_suffix("").suffix if path.suffix in _OPENERS else path.suffix
    if kind in _JSON_LINES:
        _require(path)
        return _from_json_lines(path, languages)
    if path.suffix == ".parquet":
        _require(path)
        return _from_table(_load_parquet(name), name, languages, num_proc)
    if path.exists():
        _require(path)
        raise ValueError(f"{name}: one file must be JSON lines or Parquet; for plain text give two aligned files")
    try:
        table = load_dataset(name, config_name, split=split)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(f"{name}: neither a file nor a dataset of the Hub within reach ({error})") from None
    return _from_table(table, name, languages, num_proc)


def _load_parquet(name: str) -> Dataset:
    try:
        rows = parquet.read_metadata(name).num_rows
        _require_rows(rows, name)
        return load_dataset("parquet", data_files=name, split="train")
    except (ArrowInvalid, DatasetGenerationError) as error:
        raise ValueError(f"{name}: not a whole Parquet file ({error}); fetch or make it again") from None


def _from_table(table: Dataset, name: str, languages: Sequence[str], num_proc: int | None) -> Dataset:
    _require_rows(len(table), name)
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

    return table.map(
        join,
        batched=True,
        input_columns=[columns[language] for language in languages],
        remove_columns=table.column_names,
        features=_features(languages),
        num_proc=num_proc,
        desc="Joining columns",
    )


def _features(languages: Sequence[str]) -> Features:
    return Features({"translation": Translation(languages=sorted(languages))})


def _require_languages(languages: Sequence[str], available: Sequence[str]) -> None:
    for language in languages:
        if language not in available:
            raise ValueError(f"there is no text in language {language!r}, only {', '.join(available) or 'nothing'}")


def _require_rows(count: int, *names: str) -> None:
    if count == 0:
        raise ValueError(f"{' and '.join(names)}: the corpus is empty; give files with at least one sentence pair")


def _require(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a directory; name the files in it")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        pairs = batch["translation"]
        yield from itertools.chain.from_iterable((pair[language] for language in languages) for pair in pairs)
