"""Tables of sentence pairs: JSON lines, Parquet, CSV, TSV, translation memories, and directories of `datasets`."""

import csv
import json
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from datasets import DatasetDict, load_from_disk
from pyarrow import ArrowException, parquet

from .text_files import COMPRESSED, PARQUET, first_bytes, read_lines, require_text
from .translation_memory import read_memory


Pair = tuple[str, str]

_KINDS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tmx": "tmx",
}
_MARKS_OF_DATASET = ("state.json", "dataset_dict.json")  # in what `save_to_disk` wrote
_BATCH = 1000  # rows converted at a time
_LONGEST_LIST = 200  # characters of a list of columns in a message

# What a damaged Parquet file or directory of `datasets` makes pyarrow and `datasets` raise.
_DAMAGE = (ValueError, OSError, TypeError, KeyError, MemoryError, ArrowException)


def kind_of_suffix(path: Path) -> str | None:
    """The kind of table that the name of a file promises; None for text."""
    return _KINDS.get(path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix)


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
        if not any((path / mark).is_file() for mark in _MARKS_OF_DATASET):
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
    require_text(start, path)
    if kind is None and must_be_table and text.startswith("{"):
        return "json"
    return "tsv" if kind is None and must_be_table and "\t" in text.partition("\n")[0] else kind


def read_table(path: Path, kind: str, keys: Sequence[str], split: str) -> Iterator[Pair]:
    """The sentence pairs of a table.

    Args:
        path: The file, or a directory saved by `datasets`.
        kind: The result of `kind_of_table`.
        keys: Names of the columns of source and target, or numbers from 1 in CSV and TSV without a header; languages
            in a translation memory.
        split: Which part of a directory that has several.

    Raises:
        ValueError: The file is damaged or lacks a column, or a row is malformed.
    """
    if kind == "tmx":
        return read_memory(path, keys)
    if kind in ("csv", "tsv"):
        return _delimited_pairs(path, _csv_records(path, keys) if kind == "csv" else _tsv_records(path), keys)
    if kind == "json":
        return pairs_of_rows(read_lines(path), f"{path}, line", keys)
    return pairs_of_rows(_parquet_rows(path) if kind == "parquet" else _saved_rows(path, split), f"{path}, row", keys)


# CSV and TSV

Record = tuple[int, list[str]]  # number of its first line, and its fields


def _delimited_pairs(path: Path, records: Iterator[Record], keys: Sequence[str]) -> Iterator[Pair]:
    first = next(records, None)
    if first is None:
        return
    number, fields = first
    if all(key.isdecimal() for key in keys):
        columns = [int(key) - 1 for key in keys]
        if not all(0 <= column < len(fields) for column in columns):
            raise ValueError(f"{path}, line {number}: there are no columns {' '.join(keys)}, only 1 to {len(fields)}")
        records = chain([first], records)
    else:
        names = [name.strip() for name in fields]
        if missing := [key for key in keys if key not in names]:
            raise ValueError(
                f"{path}, line {number}: no column is called {missing[0]!r}, only {_shown(names)}; name two with the "
                f"option columns, or number them, as in 1 2, if the file has no header"
            )
        columns = [names.index(key) for key in keys]
    source, target = columns
    for number, record in records:
        if len(record) != len(fields):
            raise ValueError(
                f"{path}, line {number}: the number of fields is {len(record)}, but {len(fields)} in the first line; "
                f"give every row as many"
            )
        yield record[source], record[target]


def _tsv_records(path: Path) -> Iterator[Record]:
    """Every line but empty ones; quotes are text, as in the files of Tatoeba and OPUS."""
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            yield number, line.split("\t")


def _csv_records(path: Path, keys: Sequence[str]) -> Iterator[Record]:
    """Records of comma-separated values (RFC 4180), or with semicolons or tabs, as spreadsheets also write them."""
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        return
    # By the names in a header or, without one, whichever occurs.
    with_names = [mark for mark in ",;\t" if set(keys) <= {name.strip(' "') for name in first.split(mark)}]
    delimiter = next(iter([*with_names, *(mark for mark in ",;\t" if mark in first)]), ",")
    # A line feed inside of quotes belongs to the text.
    reader = csv.reader((line + "\n" for line in chain([first], lines)), delimiter=delimiter, strict=True)
    number = 1
    try:
        for record in reader:
            if record:
                yield number, record
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {number}: not CSV ({error}); is a quote in it never closed, or not doubled?"
        ) from None


# JSON lines, Parquet, and directories of `datasets`


def pairs_of_rows(rows: Iterable[str | dict[str, object]], place: str, keys: Sequence[str]) -> Iterator[Pair]:
    """The pairs of a table's rows, or of lines of JSON that are not blank; errors begin with `place` and the number."""
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str) and not row.strip():
            continue
        try:
            if isinstance(row, str):
                row = _parse(row, keys)
            elif row.get("translation", row) is None:
                row = dict.fromkeys(keys)
            yield _pair_of_row(row, keys)
        except ValueError as error:
            raise ValueError(f"{place} {number}: {error}") from None


def _parse(line: str, keys: Sequence[str]) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, column {error.colno}); write one object a line") from None
    except RecursionError:
        raise ValueError("JSON nested too deeply; write one object of texts a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"no object of texts by language, such as {json.dumps(dict.fromkeys(keys, '...'))}")
    return row


def _pair_of_row(row: dict[str, object], keys: Sequence[str]) -> Pair:
    """The texts of a row in both languages, "" for a null.

    Raises:
        ValueError: There is no text in one of the languages, or something else.
    """
    nested = row.get("translation")
    texts = nested if isinstance(nested, dict) and any(key in nested for key in keys) else row
    pair = []
    for key in keys:
        if key not in texts:
            raise ValueError(
                f"there is no column {key!r}, only {_shown(texts)}; name two of them with the option columns"
            )
        text = texts[key]
        if not isinstance(text, str | None):
            raise ValueError(f"the text in {key!r} is not a string: {reprlib.repr(text)}")
        pair.append(text or "")
        pair[-1].encode()  # JSON can spell half of a surrogate pair, which is no text
    return pair[0], pair[1]


def _shown(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return repr(text if len(text) <= _LONGEST_LIST else f"{text[:_LONGEST_LIST]}...")[1:-1] or "nothing"


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _parquet_rows(path: Path) -> Iterator[dict[str, object]]:
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except _DAMAGE as error:
        raise ValueError(f"{path}: not a whole Parquet file ({_in_one_line(error)}); fetch or make it again") from None


def _saved_rows(path: Path, split: str) -> Iterator[dict[str, object]]:
    missing = ""
    try:
        saved = load_from_disk(str(path))
        if isinstance(saved, DatasetDict):
            missing = "" if split in saved else f"has no split {split!r}, only {', '.join(saved)}; name a folder in it"
            saved = saved.get(split, [])
        if not missing:
            for batch in saved.with_format("arrow").iter(_BATCH):
                yield from batch.to_pylist()
    except _DAMAGE as error:
        raise ValueError(
            f"{path}: not a whole dataset of save_to_disk ({_in_one_line(error)}); save it again"
        ) from None
    if missing:
        raise ValueError(f"{path}: {missing}")
