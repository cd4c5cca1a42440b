"""Sources of sentence pairs: aligned text files, tables, the Hub, or the embedded phrasebook.

Every corpus becomes a memory-mapped `datasets.Dataset` of rows `{"translation": {"en": ..., "de": ...}}`.
"""

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, IterableDataset, Translation, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..io.files import Json
from ..io.manifests import identify
from ..model.languages_vaswani import is_same_language, language_name
from .phrasebook import phrasebook
from .tables import (
    Pair,
    batch_pairs,
    column_names,
    is_saved,
    load_saved,
    read_table,
    suffix_kind,
    table_kind,
)
from .text_files import COMPRESSED, read_lines


Row = dict[str, dict[str, str]]
Source = str | Path | Sequence[str | Path]

_CODE = re.compile(r"[a-z]{2,3}(_\w+|-[A-Z]\w*)?")  # "de-en" is a pair
_PHRASEBOOK = ["phrasebook"]


def load_parallel_corpus(
    source: Source,
    source_language: str | None = None,
    target_language: str | None = None,
    split: str = "train",
    config_name: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    streaming: bool = False,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Load a parallel corpus.

    Args:
        source: Two aligned text files, source and target, one sentence a line; or tables, any number of them: JSON
            lines, Parquet, CSV, TSV (where quotes are text), TMX, directories of `datasets.save_to_disk`, or a pattern
            such as "part-*.parquet"; or "phrasebook", the embedded English-German corpus; or one dataset of the Hub.
            All but Parquet may be compressed as .gz, .bz2 or .xz. A file is recognised by its first bytes, then by its
            suffix; a single one also by its first line.
        source_language: Code of the source language, such as "en"; None for what `resolve_languages` tells.
        target_language: Code of the target language.
        split: Which part of the phrasebook ("train", "validation", "test"), of a saved directory or a Hub dataset.
        config_name: Configuration of a Hub dataset, such as "de-en" of "wmt14".
        columns: Columns of source and target in tables; by default those with the codes of the languages. Rows may
            have them in a column "translation". Numbers from 1 are for CSV and TSV without a header. In TMX they are
            languages. A null is an empty sentence.
        streaming: Read a Hub dataset through the network, without downloading its files first.
        cache_dir: Where `datasets` keeps the rows; by default its own cache.

    Raises:
        ValueError: The files are not aligned, not UTF-8, damaged, lack a language or column, or hold nothing. The
            message names the file and, where there is one, the line. Or as from `resolve_languages`.
        OSError: A file is missing.
    """
    languages = resolve_languages([source], source_language, target_language, columns)
    names = _names(source)
    features = Features({"translation": Translation(languages=sorted(languages))})
    if names == _PHRASEBOOK:
        return Dataset.from_list(_phrasebook_rows(split, languages), features=features)
    origin: Any
    if is_on_hub(source):
        origin = load_dataset(names[0], config_name, split=split, streaming=streaming)
    else:
        files = [Path(file) for name in names for file in _files(name, split)]
        # Absolute, not resolved: a link's own name has the suffix.
        origin = tuple((str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    try:
        # `datasets` keeps the rows under a digest of the arguments: a file that has changed is read again.
        return Dataset.from_generator(
            _rows,
            features=features,
            gen_kwargs={
                "names": tuple(names),
                "languages": languages,
                "columns": columns and tuple(columns),
                "part": split,
                "origin": origin,
            },
            cache_dir=cache_dir,
        )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None


def resolve_languages(
    corpora: Iterable[Source],
    source_language: str | None = None,
    target_language: str | None = None,
    columns: Sequence[str] | None = None,
) -> tuple[str, str]:
    """The source and target language of corpora: as named, or as suffixes of files or columns of tables say.

    Of two columns called by languages, in a table or the phrasebook, the first is the source, unless a named language
    tells. Suffixes also count before ".txt" and that of a compression.

    Args:
        corpora: Each as for `load_parallel_corpus`.
        source_language: Its code; None if it is not named.
        target_language: Its code; None if it is not named.
        columns: Columns of source and target in tables.

    Raises:
        ValueError: Nothing says a language; a suffix or column is another language's; both are the same; or there are
            not two columns.
        OSError: A table, which must say the languages, is missing.
    """
    if columns is not None and len(set(columns)) != 2:
        raise ValueError(f"columns: name two, the source's and the target's, not {' '.join(columns)}")
    options, languages = ("source_language", "target_language"), [source_language, target_language]
    contradiction = None
    for source in corpora:
        for side, (name, code) in enumerate(_sides(source, columns, languages)):
            language = languages[side] = languages[side] or code
            if code and language and language_name(language) != language and not is_same_language(code, language):
                contradiction = contradiction or f"{options[side]}: is {language}, but {name} is in {code}"
    if missing := [option for option, language in zip(options, languages, strict=True) if not language]:
        raise ValueError(
            f"{', '.join(missing)}: neither suffixes of files, such as train.en, nor columns of tables say it; give "
            f"{' and '.join(f'--{option}' for option in missing)}"
        )
    if contradiction:
        raise ValueError(f"{contradiction}; give the source first, or the languages of the corpora")
    if languages[0] == languages[1]:
        raise ValueError(f"{', '.join(options)}: both are {languages[0]!r}; name two languages")
    return str(languages[0]), str(languages[1])


def language_in_name(name: str) -> str | None:
    """The language code that a column is called, or a file by its last suffix; None if there is none."""
    parts = [part for part in Path(name).name.split(".") if f".{part}" not in (*COMPRESSED, ".txt")]
    code = parts[-1] if parts else ""
    return code if _CODE.fullmatch(code) and language_name(code) != code else None


def _sides(
    source: Source, columns: Sequence[str] | None, languages: Sequence[str | None]
) -> list[tuple[str, str | None]]:
    """What the source and the target of a corpus are called, and their languages by these names; empty if unknown."""
    names = _names(source)
    if names == _PHRASEBOOK:
        sides = [("the phrasebook", "en"), ("the phrasebook", "de")]
    elif len(names) == 2 and not any(suffix_kind(Path(name)) or Path(name).is_dir() for name in names):
        return [(name, language_in_name(name)) for name in names]
    elif columns:
        return [(f"column {name}", language_in_name(name)) for name in columns]
    elif None not in languages or is_on_hub(source):
        return []
    else:
        path, kind = _tables(source)[0]
        sides = [(str(path), name) for name in column_names(path, kind) if language_in_name(name) == name]
        if len(sides) != 2:
            return []
    pairs = zip(sides, reversed(languages), strict=True)
    is_turned = any(language and is_same_language(code, language) for (_, code), language in pairs)
    return [*(reversed(sides) if is_turned else sides)]


def check_parallel_corpus(
    source: Source, languages: tuple[str, str], split: str, columns: Sequence[str] | None = None
) -> None:
    """Read the first sentence pair of each file, to find most errors before any of them is read to its end.

    Raises:
        ValueError, OSError: As from `load_parallel_corpus`.
    """
    if not is_on_hub(source) and _names(source) != _PHRASEBOOK:
        for pairs in _readers(source, languages, split, columns):
            next(pairs, None)


def identify_corpus(source: Source, known: Json = None, config: str | None = None, split: str = "train") -> list[Json]:
    """Describe the files of a corpus, or its name, for a manifest.

    Args:
        source: As for `load_parallel_corpus`.
        known: As for `identify`; a deleted directory or pattern keeps the files that it had then.
        config: Configuration of a Hub dataset.
        split: Which part of a saved directory or Hub dataset.
    """
    described: list[Json] = []
    for name in _names(source):
        if files := _files(name, split):
            described += [identify(file, known) for file in files]
        else:
            place = str(Path(name).absolute())
            before = [each for each in known if isinstance(each, dict)] if isinstance(known, list) else []
            gone = [each for each in before if _lies_in(str(each.get("file")), place)]
            described += gone or [identify(name, known, config=config, split=split)]
    return described


def _lies_in(file: str, place: str) -> bool:
    """Whether a file is in a directory, or matches a pattern."""
    return file.startswith(f"{place}/") or fnmatchcase(file, place)


def is_on_hub(source: Source) -> bool:
    """Whether a corpus is a dataset of the Hub: one name that is neither a file's nor a pattern's."""
    names = _names(source)
    if len(names) != 1 or names == _PHRASEBOOK:
        return False
    is_pattern = glob.escape(names[0]) != names[0]
    return not is_pattern and suffix_kind(Path(names[0])) is None and not Path(names[0]).exists()


def _names(source: Source) -> list[str]:
    return [str(source)] if isinstance(source, str | Path) else [str(name) for name in source]


def _matches(name: str) -> list[str]:
    """The file of this name or else, in sorted order, those that match it as a pattern."""
    return [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))


def _files(name: str, split: str) -> list[str]:
    """The files that a name of a corpus stands for; none if there is none."""
    files: list[str] = []
    for path in map(Path, _matches(name)):
        if path.is_file():
            files.append(str(path))
        elif is_saved(path):
            files += [file["filename"] for file in load_saved(path, split).cache_files]
    return files


def _tables(source: Source) -> list[tuple[Path, str]]:
    """The tables of a corpus, each with its kind; none if it is two aligned text files.

    Raises:
        ValueError: The files are neither tables nor two text files.
        OSError: One is missing.
    """
    names, files = _names(source), list[str]()
    for name in names:
        files += _matches(name) or [name]
    may_be_text = len(names) == 2 and names == files
    kinds = {file: table_kind(Path(file), must_be_table=not may_be_text) for file in files}
    tables = [(Path(file), kind) for file in files if (kind := kinds[file])]
    if len(tables) == len(files) > 0 or (may_be_text and not tables):
        return tables
    raise ValueError(
        f"{' '.join(names) or 'nothing'}: a corpus is two aligned text files, the source first, or tables: JSON lines, "
        f"Parquet, CSV, TSV, TMX, or a directory of save_to_disk"
    )


def _readers(
    source: Source, languages: tuple[str, str], split: str, columns: Sequence[str] | None
) -> list[Iterator[Pair]]:
    """The pairs of each table, or of two text files; nothing but first bytes is read yet.

    Raises:
        ValueError, OSError: As from `_tables`.
    """
    readers = [read_table(path, kind, columns or languages, split) for path, kind in _tables(source)]
    return readers or [_aligned_lines(_names(source))]


def _rows(
    names: Sequence[str], languages: tuple[str, str], columns: Sequence[str] | None, part: str, origin: Any
) -> Iterator[Row]:
    """The rows of files, or of `origin`, a dataset of the Hub."""
    if isinstance(origin, Dataset | IterableDataset):
        readers = [batch_pairs(origin.with_format("arrow").iter(1000), names[0], columns or languages)]
    else:
        readers = _readers(names, languages, part, columns)
    is_empty = True
    for pair in chain.from_iterable(readers):
        is_empty = is_empty and not any(map(str.strip, pair))
        yield {"translation": dict(zip(languages, pair, strict=True))}
    if is_empty:
        raise ValueError(f"{' and '.join(names)}: the corpus is empty; give files with at least one sentence pair")


def _aligned_lines(names: Sequence[str]) -> Iterator[Pair]:
    """The pairs of lines of two files."""
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


def _phrasebook_rows(split: str, languages: Sequence[str]) -> list[Row]:
    sides = [side for language in languages for side in (0, 1) if is_same_language(language, ("en", "de")[side])]
    if sorted(sides) != [0, 1]:
        raise ValueError(f"phrasebook: is in English and German, en and de, not {' and '.join(languages)}")
    return [
        {"translation": {code: pair[side] for code, side in zip(languages, sides, strict=True)}}
        for pair in phrasebook(split)
    ]


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        for pair in batch["translation"]:
            yield from (pair[language] for language in languages)


def spread(length: int, count: int) -> np.ndarray:
    """`[min(count, length)]` indices of a sample that is spread evenly over so many rows."""
    count = min(count, length)
    return -(-np.arange(count) * length // count)
