"""Sentence pairs read as they go: for a corpus that neither memory nor the cache of `datasets` is to hold a copy of."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from pyarrow import parquet

from .corpora import (
    PARQUET_ERRORS,
    check_names,
    count_aligned_lines,
    kind_of_table,
    load_from_hub,
    load_parallel_corpus,
    pair_of_row,
    read_json_lines,
    read_lines,
    require_rows,
)


_BATCH = 1000  # rows of a table converted at a time

Pair = tuple[str, str]


@dataclass(frozen=True)
class PairStream:
    """A parallel corpus.

    Attributes:
        read: Begins to read it, from the beginning each time; yields source and target.
        count: Finds how many pairs there are. Files are read to their end, and so whatever is wrong in them found.
    """

    read: Callable[[], Iterator[Pair]]
    count: Callable[[], int]


def open_stream(
    source: str | Sequence[str],
    source_language: str,
    target_language: str,
    split: str = "train",
    config_name: str | None = None,
    streaming: bool = False,
) -> PairStream:
    """The pairs of `load_parallel_corpus`, whose arguments are these and whose errors are raised where they are met.

    Args:
        streaming: Read a dataset of the Hub through the network as it goes; else it is downloaded first, and `datasets`
            keeps a copy in its cache. Files are never copied.
    """
    languages = (source_language, target_language)
    names = check_names(source, languages)
    if len(names) == 2:
        paths = Path(names[0]), Path(names[1])
        # Those of equal length are aligned: `count` has seen to it.
        return PairStream(lambda: zip(*map(read_lines, paths), strict=False), lambda: count_aligned_lines(*paths))
    if names[0] == "phrasebook":
        return _of_table(load_parallel_corpus(names, *languages, split), "phrasebook", languages, split)
    kind = kind_of_table(names[0])
    if kind == "hub":
        options = {"streaming": True} if streaming else {}
        return _of_table(load_from_hub(names[0], config_name, split, **options), names[0], languages, split)
    if kind == "parquet":
        return _of_file(lambda: _pairs_of(_parquet_rows(names[0]), names[0], languages), names[0])
    return _of_file(lambda: _json_pairs(names, languages), names[0])


def _of_file(read: Callable[[], Iterator[Pair]], name: str) -> PairStream:
    def count() -> int:
        length = sum(1 for _ in read())
        require_rows(length, name)
        return length

    return PairStream(read, count)


def _of_table(table: Dataset | IterableDataset, name: str, languages: Sequence[str], split: str) -> PairStream:
    stream = _of_file(lambda: _pairs_of(_table_rows(table), name, languages), name)
    if isinstance(table, Dataset):
        length = len(table)
        require_rows(length, name)
    else:  # the Hub tells of many datasets how long they are; 0 is not to be believed
        length = getattr((table.info.splits or {}).get(split), "num_examples", None)
    return PairStream(stream.read, lambda: length) if length else stream


def _table_rows(table: Dataset | IterableDataset) -> Iterator[dict[str, Any]]:
    for batch in table.iter(_BATCH):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def _json_pairs(names: Sequence[str], languages: Sequence[str]) -> Iterator[Pair]:
    return (_ordered(row["translation"], languages) for row in read_json_lines(names, languages))


def _parquet_rows(name: str) -> Iterator[dict[str, Any]]:
    try:
        with parquet.ParquetFile(name) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except PARQUET_ERRORS as error:
        raise ValueError(f"{name}: not a whole Parquet file ({error}); fetch or make it again") from None


def _pairs_of(rows: Iterable[dict[str, Any]], name: str, languages: Sequence[str]) -> Iterator[Pair]:
    for number, row in enumerate(rows, start=1):
        if "translation" in row and row["translation"] is None:
            row = dict.fromkeys(languages)
        try:
            yield _ordered(pair_of_row(row, languages), languages)
        except ValueError as error:
            raise ValueError(f"{name}, row {number}: {error}") from None


def _ordered(pair: dict[str, str], languages: Sequence[str]) -> Pair:
    return pair[languages[0]], pair[languages[1]]
