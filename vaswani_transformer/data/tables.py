"""Tables of sentence pairs: JSON lines, Parquet, CSV, TSV, translation memories, and directories of `datasets`.

The builders of `datasets` read the same formats, but change texts in silence. Theirs of JSON makes "2020-01-01" a date
and numbers texts, and fills in a key that a line lacks. Theirs of CSV fills in what a short row lacks, moves the
columns by one if the first row is too long, and ends a row at a carriage return. Their errors name no file.
"""

import csv
import json
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, DatasetDict, load_from_disk
from pyarrow import parquet

from .text_files import COMPRESSED, first_bytes, read_lines
from .translation_memory import read_memory


Pair = tuple[str, str]
Record = tuple[int, list[str]]  # number of its first line, and its fields

_KINDS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tmx": "tmx",
}
_BATCH = 1000  # rows converted at a time
_SAMPLE = 100  # lines of a CSV that tell its delimiter


def suffix_kind(path: Path) -> str | None:
    """The kind of table that the name of a file promises; None for text."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    return _KINDS.get(name.suffix.lower())


def is_saved(directory: Path) -> bool:
    """Whether `save_to_disk` wrote a directory."""
    return any((directory / mark).is_file() for mark in ("state.json", "dataset_dict.json"))


def table_kind(path: Path, must_be_table: bool) -> str | None:
    """The kind of a table, by the first bytes of the file, then by its suffix; None for text.

    Args:
        path: A file, or a directory.
        must_be_table: Whether lines with tabs or JSON are a table whatever the suffix; else they may be sentences.

    Raises:
        OSError: There is no such file, or it is a directory that `datasets` did not save.
    """
    if path.is_dir():
        if not is_saved(path):
            raise IsADirectoryError(f"{path}: a directory; name the files in it, or one made by datasets.save_to_disk")
        return "saved"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    start = first_bytes(path)
    if start.startswith(b"PAR1"):
        return "parquet"
    text = start.decode("utf-16" if start.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", "ignore").lstrip()
    if text.startswith(("<?xml", "<tmx", "<!DOCTYPE tmx")):
        return "tmx"
    if (kind := suffix_kind(path)) is None and must_be_table:
        if text.startswith("{"):
            return "json"
        if "\t" in text.partition("\n")[0]:
            return "tsv"
    return kind


def read_table(path: Path, kind: str, keys: Sequence[str], split: str) -> Iterator[Pair]:
    """The sentence pairs of a table.

    Args:
        path: The file, or a directory saved by `datasets`.
        kind: The result of `table_kind`.
        keys: Names of the columns of source and target, or numbers from 1 in CSV and TSV without a header; languages
            in a translation memory.
        split: Which part of a directory that has several.

    Raises:
        ValueError: The file is damaged or lacks a column, or a row is malformed.
    """
    match kind:
        case "tmx":
            return read_memory(path, keys)
        case "json":
            return _json_pairs(path, keys)
        case "csv":
            return _delimited_pairs(path, _csv_records(path), keys)
        case "tsv":
            return _delimited_pairs(path, _tsv_records(path), keys)
        case "parquet":
            return batch_pairs(_parquet_batches(path), str(path), keys)
    return batch_pairs(load_saved(path, split).with_format("arrow").iter(_BATCH), str(path), keys)


def column_names(path: Path, kind: str) -> list[str]:
    """Names of a table's columns, in their order; none of a translation memory, or of a first line that is damaged."""
    if kind == "parquet":
        with _damage(path):
            return parquet.read_schema(path).names
    if kind == "saved":
        with _damage(path):
            names = load_from_disk(str(path)).column_names
            return names if isinstance(names, list) else next(iter(names.values()))
    if kind == "json":
        with suppress(ValueError):
            row = json.loads(next(filter(str.strip, read_lines(path)), "{}"))
            return [*row] if isinstance(row, dict) else []
    if kind in ("csv", "tsv"):
        records = _csv_records(path) if kind == "csv" else _tsv_records(path)
        return [name.strip() for name in next((fields for _, fields in records if fields), [])]
    return []


def _places(names: Sequence[str], keys: Sequence[str]) -> list[int]:
    """The places of columns among names; raises a ValueError if a key is no name, or more than one."""
    for key in keys:
        if names.count(key) != 1:
            verb = "several columns are" if key in names else "no column is"
            raise ValueError(f"{verb} called {key!r}, of {', '.join(names)}; name two with the option columns")
    return [names.index(key) for key in keys]


# CSV and TSV


def _delimited_pairs(path: Path, records: Iterator[Record], keys: Sequence[str]) -> Iterator[Pair]:
    """The pairs of records, whose columns a header names; without a header, by keys that are numbers, from 1."""
    first = next((record for record in records if record[1]), None)
    if first is None:
        return
    number, names = first[0], [name.strip() for name in first[1]]
    if all(key.isdecimal() for key in keys):
        names = [str(place) for place in range(1, len(names) + 1)]
        records = chain([first], records)
    try:
        source, target = _places(names, keys)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}; or number them, as 1 2, if there is no header") from None
    for number, record in records:
        if len(record) not in (0, len(names)):
            raise ValueError(
                f"{path}, line {number}: the number of fields is {len(record)}, but {len(names)} in the first line; "
                f"give every row as many"
            )
        if record:
            yield record[source], record[target]


def _tsv_records(path: Path) -> Iterator[Record]:
    """Every line; quotes are text, as in the files of Tatoeba and OPUS. An empty one has no fields."""
    for number, line in enumerate(read_lines(path), start=1):
        yield number, line.split("\t") if line else []


def _csv_records(path: Path) -> Iterator[Record]:
    """Records of comma-separated values (RFC 4180), or with semicolons or tabs, as spreadsheets also write them."""
    lines = (line + "\n" for line in read_lines(path))  # a line feed inside of quotes belongs to the text
    sample = [*islice(lines, _SAMPLE)]
    reader = csv.reader(chain(sample, lines), delimiter=_delimiter(sample), strict=True)
    number = 1
    try:
        for record in reader:
            yield number, record
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {number}: not CSV ({error}); is a quote in it never closed, or not doubled?"
        ) from None


def _delimiter(lines: Sequence[str]) -> str:
    """The rarest character in sentences that gives all lines equally many fields, at least two.

    `csv.Sniffer` takes apostrophes for quotes.
    """
    for mark in "\t;":
        records = [record for record in csv.reader(lines, delimiter=mark) if record]
        counts = {len(record) for record in records[:-1] or records}  # the last may be cut off
        if len(counts) == 1 and counts != {1}:
            return mark
    return ","


# Rows by name: JSON lines, Parquet, and directories of `datasets`


def _json_pairs(path: Path, keys: Sequence[str]) -> Iterator[Pair]:
    """The pairs of lines that are not blank."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"no object of texts by language, such as {json.dumps(dict.fromkeys(keys, '...'))}")
            pair = _pair(row, keys)
            "".join(pair).encode()  # JSON can spell half of a surrogate pair, which is no text
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error.msg}, column {error.colno})") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        yield pair


def _pair(row: dict[str, object], keys: Sequence[str]) -> Pair:
    """The texts of a row in both languages, which may lie in "translation"; "" for a null.

    Raises:
        ValueError: There is no text in one of the languages, or something else.
    """
    texts = row.get("translation", row) if row.keys().isdisjoint(keys) else row
    if texts is None:
        return "", ""
    if not isinstance(texts, dict):
        texts = row
    _places([*texts], keys)
    for key in keys:
        if not isinstance(texts[key], str | None):
            raise ValueError(f"the text in {key!r} is not a string: {reprlib.repr(texts[key])}")
    source, target = (str(texts[key] or "") for key in keys)
    return source, target


def batch_pairs(batches: Iterable[pa.Table | pa.RecordBatch], name: str, keys: Sequence[str]) -> Iterator[Pair]:
    """The texts of two columns, which may lie in a column "translation"; "" for a null.

    Args:
        batches: Rows in the order to read them.
        name: What messages call them.
        keys: Names of the columns of source and target.
    """
    for batch in batches:
        try:
            if "translation" not in batch.column_names:
                batch = batch.select(_places(batch.column_names, keys))
            pairs = [_pair(row, keys) for row in batch.to_pylist()]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        yield from pairs


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with _damage(path), parquet.ParquetFile(path) as file:
        yield from file.iter_batches(_BATCH)


def load_saved(path: Path, split: str) -> Dataset:
    """Map a directory of `save_to_disk` into memory; `split` counts if it has several.

    Raises:
        ValueError: It is damaged, or lacks the split.
    """
    with _damage(path):
        saved = load_from_disk(str(path))
    if not isinstance(saved, DatasetDict):
        return saved
    if split not in saved:
        raise ValueError(f"{path}: has no split {split!r}, only {', '.join(saved)}; name a folder in it")
    return saved[split]


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Name the file in what pyarrow and `datasets` raise for a damaged one."""
    try:
        yield
    except (ValueError, OSError, TypeError, LookupError, pa.ArrowException) as error:
        raise ValueError(f"{path}: not whole ({' '.join(str(error).split())}); fetch or make it again") from None
