"""Sources of sentence pairs: aligned text files, tables, the Hub, or the embedded phrasebook.

Every corpus becomes a memory-mapped `datasets.Dataset` of rows `{"translation": {"en": ..., "de": ...}}`.
"""

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, IterableDataset, Translation, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..io.files import Json
from ..io.manifests import content_digest, identify
from ..model.languages_vaswani import is_same_language, language_name
from .phrasebook import phrasebook
from .tables import Pair, dataset_pairs, load_saved, read_table, table_kind
from .text_files import COMPRESSED, read_lines


Row = dict[str, dict[str, str]]
Source = str | Path | Sequence[str | Path]

_CODE = re.compile(r"[a-z]{2,3}(_\w+|-[A-Z]\w*)?")  # "de-en" is a pair


def load_parallel_corpus(
    source: Source,
    source_language: str,
    target_language: str,
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
            The suffix of a table says its kind. All but Parquet may be compressed as .gz, .bz2 or .xz.
        source_language: Code of the source language, such as "en".
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
            message names the file and, where there is one, the line.
        OSError: A file is missing.
    """
    languages = source_language, target_language
    features = Features({"translation": Translation(languages=sorted(languages))})
    name = hub_dataset(source)
    dataset = None if name is None else load_dataset(name, config_name, split=split, streaming=streaming)
    try:
        # `datasets` keeps the rows under a digest of the arguments, and would divide lists among processes.
        return Dataset.from_generator(
            _rows,
            features=features,
            gen_kwargs={
                "source": tuple(_names(source)),
                "languages": languages,
                "split": split,
                "columns": None if columns is None else tuple(columns),
                "dataset": dataset,
                "version": content_digest(identify_corpus(source, config_name, split)),
            },
            cache_dir=cache_dir,
        )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None


def _rows(
    source: Source,
    languages: tuple[str, str],
    split: str,
    columns: Sequence[str] | None,
    dataset: Dataset | IterableDataset | None,
    version: str,
) -> Iterator[Row]:
    """The rows of a corpus, or of a `dataset` of the Hub; a file that has changed gives another version."""
    if dataset is not None:
        readers = [dataset_pairs(dataset, _shown(source), columns or languages)]
    else:
        readers = _open(source, languages, split, columns)
    is_empty = True
    for pair in chain.from_iterable(readers):
        is_empty = is_empty and not any(map(str.strip, pair))
        yield {"translation": dict(zip(languages, pair, strict=True))}
    if is_empty:
        raise ValueError(f"{_shown(source)}: the corpus is empty; give files with at least one sentence pair")


def _open(
    source: Source, languages: tuple[str, str], split: str, columns: Sequence[str] | None
) -> list[Iterator[Pair]]:
    """The pairs of each table, of two text files, or of the phrasebook; nothing is read yet."""
    files = find_files(source)
    if not files:
        return [_phrasebook_pairs(languages, split)]
    if table_kind(files[0]) is None:
        return [_aligned_lines(*files)]
    return [read_table(path, columns or languages, split) for path in files]


def _aligned_lines(source_file: Path, target_file: Path) -> Iterator[Pair]:
    lengths = [0, 0]
    for source, target in zip_longest(read_lines(source_file), read_lines(target_file)):
        if source is not None and target is not None:
            yield source, target
        lengths[0] += source is not None
        lengths[1] += target is not None
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{source_file} has {lengths[0]} lines but {target_file} has {lengths[1]}; "
            f"line n of one must translate line n of the other"
        )


def _phrasebook_pairs(languages: tuple[str, str], split: str) -> Iterator[Pair]:
    if all(map(is_same_language, languages, ("en", "de"))):
        return iter(phrasebook(split))
    if all(map(is_same_language, languages, ("de", "en"))):
        return ((german, english) for english, german in phrasebook(split))
    raise ValueError(f"phrasebook: is in English and German, en and de, not {' and '.join(languages)}")


def check_parallel_corpus(
    source: Source, languages: tuple[str, str], split: str, columns: Sequence[str] | None = None
) -> None:
    """Read the first sentence pair of each file, to find most errors before any of them is read to its end.

    Raises:
        ValueError, OSError: As from `load_parallel_corpus`.
    """
    if hub_dataset(source) is None:
        for pairs in _open(source, languages, split, columns):
            next(pairs, None)


def identify_corpus(source: Source, config: str | None = None, split: str = "train") -> list[Json]:
    """Describe the files of a corpus, or its name, for a manifest.

    Args:
        source: As for `load_parallel_corpus`.
        config: Configuration of a Hub dataset.
        split: Which part of a saved directory or Hub dataset.
    """
    described: list[Json] = []
    for path in find_files(source):
        files = load_saved(path, split).cache_files if path.is_dir() else [{"filename": path}]
        described += [identify(file["filename"]) for file in files]
    return described or [{"name": _shown(source), "config": config, "split": split}]


def find_files(source: Source) -> list[Path]:
    """The tables or the two text files of a corpus; none if it is the phrasebook or on the Hub.

    Raises:
        ValueError: The files are neither tables nor two text files.
    """
    files: list[Path] = []
    for name in _names(source):
        matches = [] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
        files += map(Path, matches or [name])
    are_tables = [table_kind(file) is not None for file in files]
    if len(files) == 1 and not files[0].exists() and not are_tables[0]:
        return []
    if files and (all(are_tables) or (len(files) == 2 and not any(are_tables))):
        return files
    raise ValueError(
        f"{_shown(source) or 'nothing'}: a corpus is two aligned text files, the source first, or tables: .jsonl, "
        f".parquet, .csv, .tsv, .tmx, or a directory of save_to_disk"
    )


def hub_dataset(source: Source) -> str | None:
    """The dataset of the Hub that a corpus is; None if it is something else."""
    return None if find_files(source) or _shown(source) == "phrasebook" else _shown(source)


def _names(source: Source) -> list[str]:
    return [str(source)] if isinstance(source, str | Path) else [str(name) for name in source]


def _shown(source: Source) -> str:
    return " and ".join(_names(source))


def resolve_languages(
    corpora: Iterable[Source], source_language: str | None = None, target_language: str | None = None
) -> tuple[str, str]:
    """The languages of corpora: as named, or as the suffixes of two text files say, such as train.en and train.de.

    Suffixes also count before ".txt" and that of a compression.

    Args:
        corpora: Each as for `load_parallel_corpus`.
        source_language: Its code; None if it is not named.
        target_language: Its code; None if it is not named.

    Raises:
        ValueError: Nothing says a language; a suffix is another language's; or both are the same.
    """
    options, languages = ("source_language", "target_language"), [source_language, target_language]
    for source in corpora:
        files = find_files(source)
        if len(files) != 2 or table_kind(files[0]) is not None:
            continue
        for side, file in enumerate(files):
            code = language_in_name(file.name)
            language = languages[side] = languages[side] or code
            if code and language and language_name(language) != language and not is_same_language(code, language):
                raise ValueError(
                    f"{options[side]}: is {language}, but {file} is in {code}; give the source first, or the languages "
                    f"of the corpora"
                )
    if missing := [option for option, language in zip(options, languages, strict=True) if not language]:
        raise ValueError(
            f"{', '.join(missing)}: no suffix of a text file, such as train.en, says it; give "
            f"{' and '.join(f'--{option}' for option in missing)}"
        )
    if languages[0] == languages[1]:
        raise ValueError(f"{', '.join(options)}: both are {languages[0]!r}; name two languages")
    return str(languages[0]), str(languages[1])


def language_in_name(name: str) -> str | None:
    """The language code that is the last suffix of a file's name; None if there is none."""
    parts = [part for part in name.split(".") if f".{part}" not in (*COMPRESSED, ".txt")]
    code = parts[-1] if parts else ""
    return code if _CODE.fullmatch(code) and language_name(code) != code else None


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        for pair in batch["translation"]:
            yield from (pair[language] for language in languages)


def spread(length: int, count: int) -> np.ndarray:
    """`[min(count, length)]` indices of a sample that is spread evenly over so many rows."""
    count = min(count, length)
    return -(-np.arange(count) * length // count)
