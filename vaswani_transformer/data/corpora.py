"""Parallel corpora, read once into memory-mapped datasets of rows `{"translation": {"en": ..., "de": ...}}`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, Translation
from datasets.exceptions import DatasetGenerationError

from ..system.manifests import content_digest
from .sources import HubDataset, Names, Source, find_source


def load_parallel_corpus(
    source: Names,
    source_language: str,
    target_language: str,
    split: str = "train",
    config: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Load a parallel corpus; a sentence may be empty, but not null.

    Args:
        source: Two aligned text files, source and target, one sentence a line; or tables, any number of them: JSON
            lines, Parquet, CSV, TSV (where quotes are text), TMX, directories of `datasets.save_to_disk`, or a pattern
            such as "part-*.parquet"; or "phrasebook" or "supplement", embedded in English and German; or one dataset of
            the Hub. The suffix of a table determines its kind. All but Parquet may be compressed as .gz, .bz2, .xz or
            .zst.
        source_language, target_language: Codes of the languages, such as "en".
        split, config, columns: As the attributes of `Corpus`.
        cache_dir: Where `datasets` keeps the rows; by default its own cache.

    Raises:
        ValueError: The files are not aligned, not UTF-8, damaged, lack a language or column, or are empty. The message
            names the file and, if possible, the line.
        OSError: A file is missing.
    """
    languages = source_language, target_language
    return Corpus(find_source(source), languages, split, config, columns).load(cache_dir)


@dataclass(frozen=True)
class Corpus:
    """A parallel corpus that is not loaded yet.

    Attributes:
        source: Its files or its name.
        languages: Codes of the source and target language.
        split: Part of an embedded corpus ("train", "validation", "test"), of a saved directory or of a Hub dataset.
        config: Configuration of a Hub dataset, such as "de-en" of "wmt14".
        columns: Columns of source and target in tables; by default the codes of the languages. They may be nested in a
            column "translation". For CSV and TSV without a header, give numbers from 1; for TMX, languages. A null is
            an empty sentence.
    """

    source: Source
    languages: tuple[str, str]
    split: str = "train"
    config: str | None = None
    columns: Sequence[str] | None = None

    def check(self) -> None:
        """Read the first sentence pair of each file, to find most errors before reading any file completely."""
        for pairs in self.source.readers(self.languages, self.split, self.columns):
            next(pairs, None)

    def load(self, cache_dir: str | Path | None = None) -> Dataset:
        """Load the pairs as `load_parallel_corpus` returns them; unchanged files come from the cache."""
        source, version = self.source, content_digest(self.source.identify(self.split, self.config))
        if isinstance(source, HubDataset):
            source = source.load(self.split, self.config)
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
    """The rows of a corpus; `version` is part of the cache key, so a changed file is read again."""
    is_empty = True
    for pair in chain.from_iterable(corpus.source.readers(corpus.languages, corpus.split, corpus.columns)):
        is_empty = is_empty and not any(map(str.strip, pair))
        yield {"translation": dict(zip(corpus.languages, pair, strict=True))}
    if is_empty:
        raise ValueError(f"{corpus.source.name}: the corpus is empty; give files with at least one sentence pair")


def sentences(corpus: Dataset, languages: Sequence[str], batch_size: int = 1000) -> Iterator[str]:
    """Every sentence of a corpus in the given languages, for training a tokenizer."""
    for batch in corpus.iter(batch_size):
        for pair in batch["translation"]:
            yield from (pair[language] for language in languages)


def evenly_spaced(length: int, count: int) -> np.ndarray:
    """`[min(count, length)]` indices of an evenly spaced sample of `length` rows."""
    count = min(count, length)
    return -(-np.arange(count) * length // count)
