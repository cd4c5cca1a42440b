"""Tables of sentence pairs: JSON lines, Parquet, CSV, TSV, translation memories, and directories of `datasets`.

The builders of `datasets` read the same formats, but change texts silently. The JSON builder makes "2020-01-01" a date
and numbers texts, and fills in a missing key. The CSV builder fills in missing fields of a short row, shifts the
columns by one if the first row is too long, and ends a row at a carriage return. Their errors name no file.
"""

import csv
import json
import re
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import langcodes
from datasets import Dataset, DatasetDict, load_from_disk
from pyarrow import parquet
from transformers.utils import logging

from ..model.languages_vaswani import language_name
from ..system.messages import errors_begin_with
from .text_files import COMPRESSED, Pair, read_lines
from .translation_memory import read_memory


logger = logging.get_logger(__name__)

Rows = Iterator[tuple[int, Any]]  # number of a row, from 1, and its texts by column
Records = Iterator[tuple[int, list[str]]]  # number of a row, and its fields

_KINDS = {f".{kind}": kind for kind in ("json", "parquet", "csv", "tsv", "tmx")} | {".jsonl": "json", ".ndjson": "json"}
_HEADINGS = {"source", "src", "target", "tgt", "text", "sentence", "translation"}  # beside languages
_QUOTED = re.compile(r'(?<![^\t])"[^"\t]*""(?:[^"\t]|"")*+"(?![^\t])')  # a field as in CSV, with doubled quotes
_BATCH = 1000  # rows converted at a time


def table_kind(path: Path) -> str | None:
    """The kind of a table by its suffix; "saved" for a directory, None for text."""
    if path.is_dir():
        return "saved"
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return _KINDS.get(name.suffix.lower())


def read_table(path: Path, keys: Sequence[str], split: str = "train") -> Iterator[Pair]:
    """The sentence pairs of a table.

    Args:
        path: A file with the suffix of a table, or a directory saved by `datasets`.
        keys: Names of the columns of source and target, or numbers from 1 in CSV and TSV without a header; languages
            in a translation memory.
        split: The part to read from a directory that has several.
    """
    match table_kind(path):
        case "tmx":
            return read_memory(path, keys)
        case "json":
            return _pairs(_json_rows(path), str(path), keys)
        case "csv":
            return _pairs(_rows_by_column(_csv_records(path), path, keys), str(path), keys)
        case "tsv":
            return _pairs(_rows_by_column(_tsv_records(path), path, keys), str(path), keys)
        case "parquet":
            return _pairs(_parquet_rows(path), str(path), keys)
    return dataset_pairs(load_saved(path, split), str(path), keys)


def dataset_pairs(dataset: Dataset, name: str, keys: Sequence[str]) -> Iterator[Pair]:
    """The sentence pairs of a dataset; messages call it `name`."""
    batches = dataset.with_format("arrow").iter(_BATCH)
    return _pairs(enumerate((row for batch in batches for row in batch.to_pylist()), start=1), name, keys)


def _pairs(rows: Rows, name: str, keys: Sequence[str]) -> Iterator[Pair]:
    """The texts of two columns, which may be nested in a column "translation"; "" for a null."""
    for number, row in rows:
        nested = row.get("translation") if isinstance(row, dict) else None
        texts = nested if isinstance(nested, dict) else row
        for key in keys:
            if not isinstance(texts, dict) or key not in texts:
                raise ValueError(
                    f"{name}, row {number}: no column is called {key!r} in {reprlib.repr(texts)}; name "
                    f"{'it by --column, such as 1' if len({*keys}) == 1 else 'both by --columns, such as 1 2'} for CSV "
                    "or TSV without a header"
                )
            if not isinstance(texts[key], str | None):
                raise ValueError(
                    f"{name}, row {number}: the text in {key!r} is not a string: {reprlib.repr(texts[key])}"
                )
        source, target = (texts[key] or "" for key in keys)
        yield source, target


def _json_rows(path: Path) -> Rows:
    """The lines that are not blank."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, row {number}: not JSON ({error.msg}, column {error.colno})") from None


def _csv_records(path: Path) -> Records:
    """The fields of each row of CSV (RFC 4180), none for a blank line; a quoted field may have line feeds."""
    records = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    number = 0
    try:
        for number, record in enumerate(records, start=1):
            yield number, record
    except csv.Error as error:
        raise ValueError(
            f"{path}, row {number + 1}: not CSV ({error}); is a quote in it never closed, or not doubled?"
        ) from None


def _tsv_records(path: Path) -> Records:
    """The fields of each row of TSV. Quotes are text (Tatoeba, OPUS); a warning counts the rows quoted as in CSV."""
    quoted: list[int] = []
    for number, line in enumerate(read_lines(path), start=1):
        if _QUOTED.search(line):
            quoted.append(number)
        yield number, line.split("\t") if line else []
    if quoted:
        decompress = "decompress and " if path.suffix.lower() in COMPRESSED else ""
        logger.warning_once(
            f"{path}: {len(quoted):,} rows, the first of them {quoted[0]}, have fields in quotes with doubled quotes "
            f"inside, as in CSV; in TSV, quotes are text and stay; to remove them, {decompress}convert the table: "
            "python -c \"import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, 'excel-tab'))\" "
            "< a.tsv > a.csv"
        )


def _rows_by_column(records: Records, path: Path, keys: Sequence[str]) -> Rows:
    """The rows of CSV or TSV by column: a header names the columns, unless the keys are numbers."""
    names: list[str] = []
    for number, record in records:
        if not record and len(names) != 1:
            continue  # a blank line is a row only in a table with one column
        record = record or [""]
        if not names and all(map(str.isdecimal, keys)):
            names = [str(column) for column in range(1, len(record) + 1)]
            _warn_of_header(dict(zip(names, record, strict=True)), path, keys)
        if not names:
            names = [name.strip() for name in record]
        elif len(record) != len(names):
            raise ValueError(
                f"{path}, row {number}: the number of fields is {len(record)}, but {len(names)} in the first row; "
                f"give every row as many"
            )
        else:
            yield number, dict(zip(names, record, strict=True))


def _warn_of_header(first: dict[str, str], path: Path, keys: Sequence[str]) -> None:
    """Warn if the first row looks like a header: it has names of languages, or other words that head a column."""

    def is_heading(text: str) -> bool:
        word = text.strip().lower()
        try:
            return word in _HEADINGS or language_name(word) != word or bool(langcodes.find(word))
        except LookupError:
            return False

    if all(is_heading(first.get(key, "")) for key in keys):
        logger.warning_once(
            f"{path}: the first row looks like a header, but is read as sentences, since the option columns has "
            f"numbers; give it names instead: {' '.join(dict.fromkeys(first[key] for key in keys))}"
        )


def _parquet_rows(path: Path) -> Rows:
    with errors_begin_with(str(path)), parquet.ParquetFile(path) as file:
        yield from enumerate((row for batch in file.iter_batches(_BATCH) for row in batch.to_pylist()), start=1)


def load_saved(path: Path, split: str) -> Dataset:
    """Map a directory of `save_to_disk` into memory; `split` counts if it has several."""
    with errors_begin_with(str(path)):
        saved = load_from_disk(path)
        if isinstance(saved, DatasetDict) and split not in saved:
            raise ValueError(f"has no split {split!r}, only {', '.join(saved)}; name a folder in it")
        return saved[split] if isinstance(saved, DatasetDict) else saved
