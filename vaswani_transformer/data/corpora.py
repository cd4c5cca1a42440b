"""Where sentence pairs come from: two aligned text files, JSON lines, Parquet, the Hub, or the embedded phrasebook.

Whatever the source, a corpus is a memory-mapped `datasets.Dataset` of rows `{"translation": {"en": ..., "de": ...}}`.
"""

import gzip
import itertools
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from datasets import Dataset, Features, Translation, load_dataset

from .phrasebook import phrasebook


_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_TABLES = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def load_parallel_corpus(
    source: Sequence[str],
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
            dataset of the Hub. Tables have a column "translation" of the languages' texts, or a column a language.
        source_language: Code of the source language, such as "en".
        target_language: Code of the target language.
        split: Which part of the phrasebook ("train", "validation", "test") or of a Hub dataset.
        config_name: Configuration of a Hub dataset, such as "de-en" of "wmt14".
        num_proc: Processes that convert a table.

    Raises:
        ValueError: The files are not aligned, not UTF-8, lack a language, or hold nothing. The message names the file
            and, where there is one, the line.
        FileNotFoundError: A file is missing.
    """
    names = list(source)
    if len(names) == 2:
        corpus = _from_text(Path(names[0]), Path(names[1]), source_language, target_language)
    elif len(names) != 1:
        raise ValueError(f"a corpus is one file or dataset, or two aligned text files, not {len(names)}: {names}")
    elif names[0] == "phrasebook":
        corpus = _from_phrasebook(split, source_language, target_language)
    else:
        table = _load_table(names[0], split, config_name)
        corpus = _as_translations(table, names[0], source_language, target_language, num_proc)
    if len(corpus) == 0:
        raise ValueError(f"{' and '.join(names)}: the corpus is empty; give files with at least one sentence pair")
    return corpus


def open_binary(path: Path) -> BinaryIO:
    """Open a plain, .gz or .xz file for reading bytes."""
    return _OPENERS.get(path.suffix, open)(path, "rb")  # type: ignore[operator]


def read_lines(path: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, split at line feeds only, as every tool that aligned them counts lines.

    Raises:
        ValueError: A line is not UTF-8, or the file is not the archive its suffix promises.
    """
    number = 0
    try:
        with open_binary(path) as file:
            for number, line in enumerate(file, start=1):
                yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path}, after line {number}: not a whole {path.suffix} file ({error})") from None


def _from_text(source: Path, target: Path, source_language: str, target_language: str) -> Dataset:
    _require(source)
    _require(target)
    # Everything is read once ahead, so that a bad line at the end is reported before anything else is begun.
    lengths = [sum(1 for _ in read_lines(path)) for path in (source, target)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{source} has {lengths[0]} lines but {target} has {lengths[1]}; "
            f"line n of one must translate line n of the other"
        )
    if lengths[0] == 0:
        return Dataset.from_list([], features=_features(source_language, target_language))
    return Dataset.from_generator(
        _read_pairs,
        features=_features(source_language, target_language),
        gen_kwargs={
            "paths": (str(source), str(target)),
            "languages": (source_language, target_language),
            # Part of the cache's key: a file that changed is read again.
            "versions": tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in (source, target)),
        },
    )


def _read_pairs(paths: tuple[str, str], languages: tuple[str, str], versions: Any) -> Iterator[dict[str, Any]]:
    for sentences in zip(*(read_lines(Path(path)) for path in paths), strict=True):
        yield {"translation": dict(zip(languages, sentences, strict=True))}


def _from_phrasebook(split: str, source_language: str, target_language: str) -> Dataset:
    if {source_language, target_language} != {"en", "de"}:
        raise ValueError(f"the phrasebook is English-German (en, de), not {source_language}-{target_language}")
    rows = [{"translation": {"en": english, "de": german}} for english, german in phrasebook(split)]
    return Dataset.from_list(rows, features=_features(source_language, target_language))


def _load_table(name: str, split: str, config_name: str | None) -> Dataset:
    suffixes = [suffix for suffix in Path(name).suffixes if suffix not in _OPENERS]
    kind = _TABLES.get(suffixes[-1]) if suffixes else None
    if kind is None:
        if Path(name).exists() or name.startswith(("/", "./", "../")):
            _require(Path(name))
            raise ValueError(f"{name}: one file must be JSON lines or Parquet; for plain text give two aligned files")
        return load_dataset(name, config_name, split=split)
    _require(Path(name))
    if not next(iter(open_binary(Path(name))), b""):
        return Dataset.from_list([])
    return load_dataset(kind, data_files=name, split="train")


def _as_translations(
    table: Dataset, name: str, source_language: str, target_language: str, num_proc: int | None
) -> Dataset:
    languages = (source_language, target_language)
    if len(table) == 0:
        return table
    if "translation" in table.column_names:
        available: Sequence[str] = list(table[0]["translation"])
    else:
        available = table.column_names
    for language in languages:
        if language not in available:
            raise ValueError(f"{name}: there is no text in language {language!r}, only {', '.join(available)}")
    if "translation" in table.column_names:
        return table.select_columns("translation")
    return table.map(
        lambda row: {"translation": {language: row[language] for language in languages}},
        remove_columns=table.column_names,
        features=_features(*languages),
        num_proc=num_proc,
        desc="Joining columns",
    )


def _features(source_language: str, target_language: str) -> Features:
    return Features({"translation": Translation(languages=sorted((source_language, target_language)))})


def _require(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        pairs = batch["translation"]
        yield from itertools.chain.from_iterable((pair[language] for language in languages) for pair in pairs)
