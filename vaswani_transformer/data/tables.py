"""Tables of sentence pairs: JSON lines, Parquet, CSV, TSV, translation memories, and directories of `datasets`.

The builders of `datasets` read the same formats, but change texts in silence. Theirs of JSON makes "2020-01-01" a date
and numbers texts, and fills in a key that a line lacks. Theirs of CSV fills in what a short row lacks, moves the
columns by one if the first row is too long, and ends a row at a carriage return. Theirs of Parquet passes over
checksums and holds a whole row group in memory. Their errors name no file.
"""

import csv
import json
import locale
import os
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from textwrap import shorten

import pyarrow as pa
from datasets import Dataset, DatasetDict, load_from_disk
from pyarrow import parquet

from ..io.files import without_repetition
from .text_files import COMPRESSED, PARQUET, Allowance, first_bytes, read_lines, refuse_other_formats
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
_LONGEST_LIST = 200  # characters of a list of columns in a message
_DELIMITERS = ",;\t"
_SAMPLE = 100  # lines of a CSV without a header by which its delimiter is found

# What a damaged Parquet file or directory of `datasets` makes pyarrow and `datasets` raise.
_DAMAGE = (ValueError, OSError, TypeError, LookupError, MemoryError, pa.ArrowException)


def kind_of_suffix(path: Path) -> str | None:
    """The kind of table that the name of a file promises; None for text."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    return _KINDS.get(name.suffix.lower())


def is_saved(directory: Path) -> bool:
    """Whether `save_to_disk` wrote a directory."""
    return any((directory / mark).is_file() for mark in ("state.json", "dataset_dict.json"))


def kind_of_table(path: Path, must_be_table: bool) -> str | None:
    """The kind of a table, by the first bytes of the file, then by its suffix; None for text.

    Args:
        path: A file, or a directory.
        must_be_table: Whether lines with tabs or JSON are a table whatever the suffix; else they may be sentences.

    Raises:
        ValueError: The file is of a known kind that holds neither text nor a table.
        OSError: There is no such file, or it is a directory that `datasets` did not save.
    """
    if path.is_dir():
        if not is_saved(path):
            raise IsADirectoryError(f"{path}: a directory; name the files in it, or one made by datasets.save_to_disk")
        return "saved"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    start = first_bytes(path)
    if start.startswith(PARQUET):
        if path.suffix in COMPRESSED:
            raise ValueError(f"{path}: a Parquet file that was compressed once more; decompress it")
        return "parquet"
    is_utf16 = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = start.decode("utf-16" if is_utf16 else "utf-8-sig", "ignore").lstrip()
    if text.startswith(("<?xml", "<tmx", "<!DOCTYPE tmx")):
        return "tmx"
    kind = kind_of_suffix(path)
    if kind in ("parquet", "tmx"):
        return kind  # it is damaged, as its reader will say
    refuse_other_formats(start, path)
    if kind is None and must_be_table:
        if text.startswith("{"):
            return "json"
        if "\t" in text.partition("\n")[0]:
            return "tsv"
    return kind


def read_table(path: Path, kind: str, keys: Sequence[str], split: str, languages: Sequence[str]) -> Iterator[Pair]:
    """The sentence pairs of a table.

    Args:
        path: The file, or a directory saved by `datasets`.
        kind: The result of `kind_of_table`.
        keys: Names of the columns of source and target, or numbers from 1 in CSV and TSV without a header; languages
            in a translation memory.
        split: Which part of a directory that has several.
        languages: Codes of the source and target language.

    Raises:
        ValueError: The file is damaged or lacks a column, a row is malformed, or the content is far larger than the
            file.
    """
    if kind == "tmx":
        return read_memory(path, keys)
    if kind == "json":
        return _json_pairs(path, keys)
    if kind == "csv":
        return _delimited_pairs(path, _csv_records(path, keys), keys, languages)
    if kind == "tsv":
        return _delimited_pairs(path, _tsv_records(path), keys, languages)
    if kind == "parquet":
        allowance = Allowance(path, path.stat().st_size)
        return pairs_of_batches(_parquet_batches(path, allowance), str(path), keys, allowance)
    saved = _load_saved(path, split)
    allowance = Allowance(path, sum(Path(file["filename"]).stat().st_size for file in saved.cache_files))
    return pairs_of_batches(_saved_batches(path, saved), str(path), keys, allowance)


def column_names(path: Path, kind: str) -> list[str]:
    """Names of a table's columns, in their order; none of a translation memory, or of a first line that is damaged."""
    if kind == "parquet":
        with _damage(path, "Parquet file"):
            return parquet.read_schema(path).names
    if kind == "saved":
        with _damage(path, "dataset of save_to_disk"):
            names = load_from_disk(str(path)).column_names
            return names if isinstance(names, list) else next(iter(names.values()))
    if kind == "json":
        with suppress(ValueError):
            row = json.loads(next(filter(str.strip, read_lines(path)), "{}"))
            return [*row] if isinstance(row, dict) else []
    if kind in ("csv", "tsv"):
        records = _csv_records(path, [""]) if kind == "csv" else _tsv_records(path)
        return [name.strip() for name in next((fields for _, fields in records if fields), [])]
    return []


def _places(names: Sequence[str], keys: Sequence[str]) -> list[int]:
    """The places of columns among names.

    Raises:
        ValueError: A key is no name, or more than one.
    """
    for key in keys:
        if names.count(key) > 1:
            raise ValueError(f"there are {names.count(key)} columns {key!r}; rename all but one")
        if key not in names:
            shown = shorten(", ".join(names), _LONGEST_LIST) or "nothing"
            raise ValueError(f"there is no column {key!r}, only {shown}; name two of them with the option columns")
    return [names.index(key) for key in keys]


# CSV and TSV


def _delimited_pairs(
    path: Path, records: Iterator[Record], keys: Sequence[str], languages: Sequence[str]
) -> Iterator[Pair]:
    """The pairs of records, whose columns a header names; without a header, by keys that are numbers, from 1."""
    blank = []
    for first in records:
        if first[1]:
            break
        blank.append(first)
    else:
        return
    number, fields = first
    names = [name.strip() for name in fields]
    has_header = not all(key.isdecimal() for key in keys)
    if not has_header:
        names = [str(place) for place in range(1, len(fields) + 1)]
        records = chain(blank, [first], records)
    try:
        source, target = _places(names, keys)
    except ValueError as error:
        raise ValueError(
            f"{path}, line {number}: {error}, or number them, as in 1 2, if the file has no header"
        ) from None
    if not has_header and {_side_named(fields[place], languages) for place in (source, target)} == {0, 1}:
        raise ValueError(
            f"{path}, line {number}: {fields[source]!r} and {fields[target]!r} are no sentences, but names of columns; "
            f"give them to the option columns instead of numbers"
        )
    for number, record in records:
        if not record:
            if len(fields) == 1:
                yield "", ""  # a row whose only field is empty
            continue
        if len(record) != len(fields):
            raise ValueError(
                f"{path}, line {number}: the number of fields is {len(record)}, but {len(fields)} in the first line; "
                f"give every row as many"
            )
        yield record[source], record[target]


def _side_named(text: str, languages: Sequence[str]) -> int | None:
    """0 for "source" or the source language, by its code or in English; 1 for the target; None for other text."""
    name = text.strip().lower().replace("-", "_")
    names = {name, name.partition("_")[0], locale.normalize(name).partition("_")[0]}  # "german" is an alias of "de_DE"
    sides = ({"source", "src", languages[0].lower()}, {"target", "tgt", languages[1].lower()})
    return next((number for number, side in enumerate(sides) if not side.isdisjoint(names)), None)


def _tsv_records(path: Path) -> Iterator[Record]:
    """Every line; quotes are text, as in the files of Tatoeba and OPUS. An empty one has no fields."""
    for number, line in enumerate(read_lines(path), start=1):
        yield number, line.split("\t") if line else []


def _csv_records(path: Path, keys: Sequence[str]) -> Iterator[Record]:
    """Records of comma-separated values (RFC 4180), or with semicolons or tabs, as spreadsheets also write them."""
    lines = read_lines(path)
    sample = [*islice(lines, _SAMPLE)] or [""]
    if all(key.isdecimal() for key in keys):
        found = _even_delimiters(path, sample, max(map(int, keys)))
    else:
        found = [mark for mark in _DELIMITERS if set(keys) <= {name.strip(' "') for name in sample[0].split(mark)}]
    delimiter = next(iter([*found, *(mark for mark in _DELIMITERS if mark in sample[0])]), ",")
    # A line feed inside of quotes belongs to the text.
    reader = csv.reader((line + "\n" for line in chain(sample, lines)), delimiter=delimiter, strict=True)
    number = 1
    try:
        for record in reader:
            yield number, record
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {number}: not CSV ({error}); is a quote in it never closed, or not doubled?"
        ) from None


def _even_delimiters(path: Path, lines: Sequence[str], columns: int) -> list[str]:
    """The delimiter that gives all lines the same number of fields, at least `columns`; none if there is no such one.

    Raises:
        ValueError: There are two.
    """
    found = []
    for mark in _DELIMITERS:
        counts = {len(record) for record in csv.reader((line + "\n" for line in lines), delimiter=mark) if record}
        if len(counts) == 1 and min(counts) >= max(columns, 2):
            found.append(mark)
    if len(found) > 1:
        raise ValueError(
            f"{path}: {' and '.join(map(repr, found))} both divide its lines into equally many fields; give the file a "
            f"header, and name its columns"
        )
    return found


# Rows by name: JSON lines, Parquet, and directories of `datasets`


def _json_pairs(path: Path, keys: Sequence[str]) -> Iterator[Pair]:
    """The pairs of lines that are not blank."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=without_repetition)
            if not isinstance(row, dict):
                raise ValueError(f"no object of texts by language, such as {json.dumps(dict.fromkeys(keys, '...'))}")
            yield _pair(row, keys)
        except json.JSONDecodeError as error:
            reason = f"{error.msg}, column {error.colno}"
            raise ValueError(f"{path}, line {number}: not JSON ({reason}); write one object a line") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


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
    pair = []
    for key in keys:
        if key not in texts:
            _places([*texts], keys)
        text = texts[key]
        if not isinstance(text, str | None):
            raise ValueError(f"the text in {key!r} is not a string: {reprlib.repr(text)}")
        pair.append(text or "")
        pair[-1].encode()  # JSON can spell half of a surrogate pair, which is no text
    return pair[0], pair[1]


def pairs_of_batches(
    batches: Iterable[pa.Table | pa.RecordBatch], name: str, keys: Sequence[str], allowance: Allowance | None = None
) -> Iterator[Pair]:
    """The texts of two columns, which may lie in a column "translation"; "" for a null.

    Args:
        batches: Rows in the order to read them.
        name: What messages call them.
        keys: Names of the columns of source and target.
        allowance: How much text they may be.
    """
    for batch in batches:
        try:
            if "translation" not in batch.column_names:
                batch = batch.select(_places(batch.column_names, keys))
            pairs = [_pair(row, keys) for row in batch.to_pylist()]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if allowance is not None:
            allowance.spend(sum(len(source) + len(target) for source, target in pairs), len(pairs))
        yield from pairs


def _parquet_batches(path: Path, allowance: Allowance) -> Iterator[pa.RecordBatch]:
    with _damage(path, "Parquet file"), parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            allowance.spend(group.total_byte_size, group.num_rows)
            # All rows may have the longest text of a dictionary, which is at most as long as its row group.
            rows = min(_BATCH, 1 + allowance.bytes // (1 + group.total_byte_size))
            for batch in file.iter_batches(rows, [number]):
                batch.validate(full=True)
                yield batch


def _saved_batches(path: Path, saved: Dataset) -> Iterator[pa.Table]:
    with _damage(path, "dataset of save_to_disk"):
        for batch in saved.with_format("arrow").iter(_BATCH):
            batch.validate(full=True)  # else Arrow follows a damaged offset out of the memory
            yield batch


def saved_files(path: Path, split: str) -> list[str]:
    """The files that the rows of a saved directory are in."""
    return [file["filename"] for file in _load_saved(path, split).cache_files]


def _load_saved(path: Path, split: str) -> Dataset:
    with _damage(path, "dataset of save_to_disk"):
        saved = load_from_disk(str(path), keep_in_memory=False)
    if isinstance(saved, DatasetDict):
        if split not in saved:
            raise ValueError(f"{path}: has no split {split!r}, only {', '.join(saved)}; name a folder in it")
        saved = saved[split]
    for file in saved.cache_files:
        if not Path(os.path.abspath(file["filename"])).is_relative_to(os.path.abspath(path)):
            raise ValueError(f"{path}: its state.json names {file['filename']}, which is outside of it; save it again")
    return saved


@contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    """Turn what pyarrow and `datasets` raise for damaged files into a ValueError that names the file."""
    try:
        yield
    except _DAMAGE as error:
        if str(error).startswith(str(path)):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not a whole {what} ({reason}); fetch or make it again") from None
