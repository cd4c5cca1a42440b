"""Parallel corpora, read once into memory-mapped datasets of rows `{"translation": {"en": ..., "de": ...}}`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import langcodes
import numpy as np
from datasets import Dataset, Features, Translation
from datasets.exceptions import DatasetGenerationError
from transformers import PreTrainedConfig

from ..model.languages_vaswani import Directions, base_language, is_same_language, language_name, standard_code
from ..system.manifests import content_digest
from .sources import HubDataset, Names, Source, TextFiles, find_source
from .text_files import COMPRESSED


_CODE = re.compile(r"[a-z]{2,3}(_\w+|-[A-Z]\w*)?")  # "de-en" is a pair
_OTHER_SUFFIXES = ("src", "in", "sh")  # also codes, of a Sardinian dialect and, formerly, of Indonesian and Serbian


def load_parallel_corpus(
    source: Names,
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
            such as "part-*.parquet"; or "phrasebook" or "supplement", embedded in English and German; or one dataset of
            the Hub. The suffix of a table determines its kind. All but Parquet may be compressed as .gz, .bz2, .xz or
            .zst.
        source_language, target_language: Codes of the languages, such as "en".
        split: Part of an embedded corpus ("train", "validation", "test"), of a saved directory or of a Hub dataset.
        config_name: Configuration of a Hub dataset, such as "de-en" of "wmt14".
        columns: Columns of source and target in tables; by default the codes of the languages. They may be nested in a
            column "translation". For CSV and TSV without a header, give numbers from 1; for TMX, languages. A null is
            an empty sentence.
        streaming: Read a Hub dataset through the network, without downloading its files first.
        cache_dir: Where `datasets` keeps the rows; by default its own cache.

    Raises:
        ValueError: The files are not aligned, not UTF-8, damaged, lack a language or column, or are empty. The message
            names the file and, if possible, the line.
        OSError: A file is missing.
    """
    languages = source_language, target_language
    return Corpus(find_source(source), languages, split, config_name, columns, streaming).load(cache_dir)


@dataclass(frozen=True)
class Corpus:
    """A corpus that is not loaded yet; the attributes are the arguments of `load_parallel_corpus`."""

    source: Source
    languages: tuple[str, str]
    split: str = "train"
    config: str | None = None
    columns: Sequence[str] | None = None
    streaming: bool = False

    def check(self) -> None:
        """Read the first sentence pair of each file, to find most errors before reading any file completely."""
        for pairs in self.source.readers(self.languages, self.split, self.columns):
            next(pairs, None)

    def load(self, cache_dir: str | Path | None = None) -> Dataset:
        """Load the pairs as `load_parallel_corpus` returns them; unchanged files come from the cache."""
        source, version = self.source, content_digest(self.source.identify(self.split, self.config))
        if isinstance(source, HubDataset):
            source = source.load(self.split, self.config, self.streaming)
        try:
            # `datasets` keeps the rows under a digest of the arguments.
            return Dataset.from_generator(
                _rows,
                features=Features({"translation": Translation(languages=sorted(self.languages))}),
                gen_kwargs={"corpus": replace(self, source=source), "version": version},
                cache_dir=cache_dir,
            )
        except DatasetGenerationError as error:
            raise (error.__cause__ or error) from None


def _rows(corpus: Corpus, version: str) -> Iterator[dict[str, dict[str, str]]]:
    """The rows of a corpus; `datasets` reads a changed file again because its `version` is another."""
    is_empty = True
    for pair in chain.from_iterable(corpus.source.readers(corpus.languages, corpus.split, corpus.columns)):
        is_empty = is_empty and not any(map(str.strip, pair))
        yield {"translation": dict(zip(corpus.languages, pair, strict=True))}
    if is_empty:
        raise ValueError(f"{corpus.source.name}: the corpus is empty; give files with at least one sentence pair")


def resolve_languages(
    corpora: Iterable[Names], source_language: str | None = None, target_language: str | None = None
) -> tuple[str, str]:
    """The languages of corpora: as named, or by the suffixes of two text files, such as train.en and train.de.

    Suffixes also count before ".txt" and before the suffix of a compression. A language that is not named is None.

    Raises:
        ValueError: A language is unknown, named without its code, not that of a suffix, or both source and target.
    """
    options, languages = ("source_language", "target_language"), [source_language, target_language]
    for option, name in zip(options, languages, strict=True):
        if name and not langcodes.tag_is_valid(standard_code(name)):
            with suppress(LookupError):
                raise ValueError(f"{option}: {name} is the name of a language; give its code, {langcodes.find(name)}")
    for side, file, code in _suffixes(corpora):
        language = languages[side] = languages[side] or code
        if language_in_name(language) and not is_same_language(code, language):
            raise ValueError(
                f"{options[side]}: is {language}, but {file} is in {code}; give the source first, or the languages "
                f"of the corpora"
            )
    if missing := [option for option, language in zip(options, languages, strict=True) if not language]:
        raise ValueError(
            f"{', '.join(missing)}: cannot be inferred from the suffix of a text file, such as train.en; give "
            f"{' and '.join(f'--{option}' for option in missing)}"
        )
    source, target = map(str, languages)
    if standard_code(source) == standard_code(target):
        raise ValueError(f"{', '.join(options)}: both are {source!r}; name two languages")
    return source, target


def _suffixes(corpora: Iterable[Names]) -> Iterator[tuple[int, Path, str]]:
    """Text files that are named after a language: the side, 0 for the source; the file; and the code."""
    for source in map(find_source, corpora):
        files = (source.source, source.target) if isinstance(source, TextFiles) else ()
        for side, file in enumerate(files):
            if (code := language_in_name(file.name)) is not None:
                yield side, file, code


def choose_direction(
    config: PreTrainedConfig | None, corpora: Iterable[Names], source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Source and target language, by the suffixes of text files if a model has several directions and both are None."""
    if source is None and target is None and getattr(config, "language_tags", None):
        languages = {side: code for side, _, code in _suffixes(corpora)}
        source, target = languages.get(0), languages.get(1)
    return source, target


def languages_to_score(
    configs: Sequence[PreTrainedConfig], corpora: Iterable[Names], source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Languages to translate from and into: `source` and `target`, or else the first model's; None if unknown.

    If both are None and that model has several directions, the suffixes of text files say which.

    Raises:
        ValueError: A model does not translate between them, or nothing says which of several directions is meant.
    """
    if configs:
        directions = Directions(configs[0])
        source, target = choose_direction(configs[0], corpora, source, target)
        default_source, default_target = directions.languages(directions.tag(source, target, is_required=True))
        source, target = source or default_source, target or default_target
    for config in configs:
        Directions(config).tag(source, target)
    return source, target


def language_in_name(name: str) -> str | None:
    """The language code at the end of a file's name, before suffixes of archives; None without one.

    Since "new", "raw" and "tgt" are codes, one of three letters counts only if it has a synonym of two letters or ten
    million speakers.
    """
    parts = [part for part in name.split(".") if f".{part.lower()}" not in (*COMPRESSED, ".txt")]
    code = parts[-1] if parts else ""
    code = code.lower() if code.isupper() else code
    if not _CODE.fullmatch(code) or language_name(code) == code:
        return None
    base = base_language(code)
    is_likely = len(base) == 2 or len(code) > 3 or langcodes.get(base).speaking_population() > 1e7
    return code if is_likely and code not in _OTHER_SUFFIXES else None


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        for pair in batch["translation"]:
            yield from (pair[language] for language in languages)


def evenly_spaced(length: int, count: int) -> np.ndarray:
    """`[min(count, length)]` indices of an evenly spaced sample of `length` rows."""
    count = min(count, length)
    return -(-np.arange(count) * length // count)
