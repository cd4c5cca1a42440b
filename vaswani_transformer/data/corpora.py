"""Sources of sentence pairs: two aligned text files, JSON lines, Parquet, the Hub, or the embedded phrasebook.

Every corpus becomes a memory-mapped `datasets.Dataset` of rows `{"translation": {"en": ..., "de": ...}}`.
"""

import gzip
import json
import lzma
import pkgutil
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from datasets import Dataset, Features, IterableDataset, Translation, load_dataset, packaged_modules
from datasets.exceptions import DatasetGenerationError, DatasetsError
from pyarrow import ArrowException, parquet

from .phrasebook import phrasebook


_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_JSON_LINES = (".json", ".jsonl")
_LONGEST_LINE = 1 << 26  # bytes; a small archive may unpack to more than the memory holds

_BATCH = 1000  # rows of a Parquet file converted at a time

# What a damaged Parquet file makes pyarrow raise, a text that is not UTF-8 included.
_PARQUET_ERRORS = (ValueError, OSError, TypeError, KeyError, MemoryError, ArrowException)

Row = dict[str, dict[str, str]]
Pair = tuple[str, str]


def load_parallel_corpus(
    source: str | Sequence[str],
    source_language: str,
    target_language: str,
    split: str = "train",
    config_name: str | None = None,
    *,
    streaming: bool = False,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Load a parallel corpus.

    Args:
        source: Two names: aligned text files (plain, .gz or .xz), source and target, one sentence a line. One name: a
            file of JSON lines (also .gz, .xz) or Parquet; "phrasebook", the embedded English-German corpus; or a
            dataset of the Hub. Tables have a column "translation" of texts by language, or a column for each language;
            a null is an empty sentence.
        source_language: Code of the source language, such as "en".
        target_language: Code of the target language.
        split: Which part of the phrasebook ("train", "validation", "test") or of a Hub dataset.
        config_name: Configuration of a Hub dataset, such as "de-en" of "wmt14".
        streaming: Read a Hub dataset through the network, without downloading its files first.
        cache_dir: Where `datasets` keeps the rows; by default its own cache.

    Raises:
        ValueError: The files are not aligned, not UTF-8, damaged, lack a language, or hold nothing. The message names
            the file and, where there is one, the line.
        OSError: A file is missing.
    """
    languages = (source_language, target_language)
    names = [source] if isinstance(source, str) else list(source)
    if source_language == target_language:
        raise ValueError(f"source_language, target_language: both are {source_language!r}; name two languages")
    if len(names) not in (1, 2):
        raise ValueError(f"a corpus is one file or dataset, or two aligned text files, not {len(names)}: {names}")
    features = Features({"translation": Translation(languages=sorted(languages))})
    if names == ["phrasebook"]:
        return Dataset.from_list(_phrasebook_rows(split, languages), features=features)
    is_of_hub = len(names) == 1 and not _is_table(Path(names[0]))
    origin = _load_from_hub(names[0], config_name, split, streaming) if is_of_hub else _versions(names)
    try:
        # `datasets` keeps the rows under a digest of the arguments: a file that has changed is read again.
        return Dataset.from_generator(
            _rows,
            features=features,
            gen_kwargs={"names": tuple(names), "languages": languages, "origin": origin},
            cache_dir=cache_dir,
        )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None


def _versions(names: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """Absolute path, size and time of the last change of files."""
    for name in names:
        _require_file(Path(name))
    stats = [(Path(name).absolute(), Path(name).stat()) for name in names]  # a link's own name has the suffix
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def _rows(names: Sequence[str], languages: Sequence[str], origin: Any) -> Iterator[Row]:
    """The rows of two text files, of a table, or of `origin`, a dataset of the Hub."""
    if len(names) == 2:
        pairs = _aligned_lines(*names)
    elif isinstance(origin, Dataset | IterableDataset):
        pairs = _pairs_of_rows(origin, f"{names[0]}, row", languages)
    elif names[0].endswith(".parquet"):
        pairs = _pairs_of_rows(_parquet_rows(names[0]), f"{names[0]}, row", languages)
    else:
        pairs = _pairs_of_rows(read_lines(Path(names[0])), f"{names[0]}, line", languages)
    is_empty = True
    for pair in pairs:
        is_empty = is_empty and not any(map(str.strip, pair))
        yield {"translation": dict(zip(languages, pair, strict=True))}
    if is_empty:
        raise ValueError(f"{' and '.join(names)}: the corpus is empty; give files with at least one sentence pair")


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


def _aligned_lines(*names: str) -> Iterator[Pair]:
    lengths = [0, 0]
    for source, target in zip_longest(*(read_lines(Path(name)) for name in names)):
        if source is not None and target is not None:
            yield source, target
        lengths[0] += source is not None
        lengths[1] += target is not None
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{names[0]} has {lengths[0]} lines but {names[1]} has {lengths[1]}; "
            f"line n of one must translate line n of the other"
        )


def _parquet_rows(name: str) -> Iterator[dict[str, object]]:
    try:
        with parquet.ParquetFile(name) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except _PARQUET_ERRORS as error:
        raise ValueError(f"{name}: not a whole Parquet file ({error}); fetch or make it again") from None


def _pairs_of_rows(rows: Iterable[str | dict[str, object]], place: str, languages: Sequence[str]) -> Iterator[Pair]:
    """The pairs of a table's rows, or of lines of JSON that are not blank; errors begin with `place` and the number."""
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str) and not row.strip():
            continue
        try:
            if isinstance(row, str):
                row = _parse(row, languages)
            elif row.get("translation", row) is None:
                row = dict.fromkeys(languages)
            yield _pair_of_row(row, languages)
        except ValueError as error:
            raise ValueError(f"{place} {number}: {error}") from None


def _parse(line: str, languages: Sequence[str]) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, column {error.colno}); write one object a line") from None
    except RecursionError:
        raise ValueError("JSON nested too deeply; write one object of texts a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"no object of texts by language, such as {json.dumps(dict.fromkeys(languages, '...'))}")
    return row


def _pair_of_row(row: dict[str, object], languages: Sequence[str]) -> Pair:
    """The texts of a row in both languages, "" for a null.

    Raises:
        ValueError: There is no text in one of the languages, or something else.
    """
    nested = row.get("translation")
    texts = nested if isinstance(nested, dict) else row
    pair = []
    for language in languages:
        if language not in texts:
            raise ValueError(f"there is no text in language {language!r}, only {', '.join(texts) or 'nothing'}")
        text = texts[language]
        if not isinstance(text, str | None):
            raise ValueError(f"the text in {language!r} is not a string: {reprlib.repr(text)}")
        pair.append(text or "")
        pair[-1].encode()  # JSON can spell half of a surrogate pair, which is no text
    return pair[0], pair[1]


def _phrasebook_rows(split: str, languages: Sequence[str]) -> list[Row]:
    if set(languages) != {"en", "de"}:
        raise ValueError(f"the phrasebook is English-German (en, de), not {'-'.join(languages)}")
    return [{"translation": {"en": english, "de": german}} for english, german in phrasebook(split)]


def _is_table(path: Path) -> bool:
    """Whether the one name of a corpus is that of a file; else it is that of a dataset of the Hub.

    Raises:
        ValueError: It is a file of another kind.
        OSError: It is a directory, or its suffix is that of a table but there is no such file.
    """
    suffix = path.with_suffix("").suffix if path.suffix in _OPENERS else path.suffix
    is_table = suffix in _JSON_LINES or path.suffix == ".parquet"
    if is_table or path.exists():
        _require_file(path)
    if not is_table and path.exists():
        raise ValueError(f"{path}: one file must be JSON lines or Parquet; for plain text give two aligned files")
    return is_table


def _load_from_hub(name: str, config_name: str | None, split: str, streaming: bool) -> Dataset | IterableDataset:
    """`datasets.load_dataset`.

    Raises:
        FileNotFoundError: There is no such dataset, or it cannot be reached.
        ValueError: It cannot be loaded.
    """
    if name in {module.name for module in pkgutil.iter_modules(packaged_modules.__path__)}:
        # `datasets` would load the files of the working directory.
        raise FileNotFoundError(f"{name}: neither a file nor a dataset of the Hub, but a file format of `datasets`")
    try:
        return load_dataset(name, config_name, split=split, streaming=streaming)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(f"{name}: neither a file nor a dataset of the Hub within reach ({error})") from None
    except (ValueError, DatasetsError) as error:  # also for a name that no dataset can have
        raise ValueError(f"{name}: not a dataset that can be loaded ({error})") from None


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a directory; name the files in it")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        for pair in batch["translation"]:
            yield from (pair[language] for language in languages)


def spread(length: int, count: int) -> np.ndarray:
    """`[min(count, length)]` indices of a sample that is spread evenly over so many rows."""
    count = min(count, length)
    return -(-np.arange(count) * length // count)
