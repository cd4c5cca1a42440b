"""Sources of sentence pairs: aligned text files, tables, the embedded corpora, or a dataset of the Hub."""

import glob
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from datasets import Dataset, load_dataset

from ..model.languages_vaswani import is_same_language
from ..system.files import Json
from ..system.manifests import content_digest, identify
from .phrasebook import SPLIT_SIZES, phrasebook
from .supplement import supplement
from .tables import dataset_pairs, load_saved, read_table, table_kind
from .text_files import Pair, read_lines


Names = str | Path | Sequence[str | Path]
Languages = tuple[str, str]
Columns = Sequence[str] | None
_EMBEDDED = {"phrasebook": phrasebook, "supplement": supplement}


@dataclass(frozen=True)
class Source(ABC):
    """A source of sentence pairs; messages call it `name`."""

    name: str

    @abstractmethod
    def readers(self, languages: Languages, split: str, columns: Columns) -> list[Iterator[Pair]]:
        """Lazy iterators over the pairs of each file. See `load_parallel_corpus` for the arguments."""

    def identify(self, split: str, config: str | None = None) -> list[Json]:
        """Describe the source for a manifest: by its files, or else its name."""
        return [{"name": self.name, "config": config, "split": split}]


@dataclass(frozen=True)
class TextFiles(Source):
    """Two aligned text files, one sentence a line."""

    source: Path
    target: Path

    def readers(self, languages: Languages, split: str, columns: Columns) -> list[Iterator[Pair]]:
        return [self._pairs()]

    def _pairs(self) -> Iterator[Pair]:
        lengths = [0, 0]
        for source, target in zip_longest(read_lines(self.source), read_lines(self.target)):
            if source is not None and target is not None:
                yield source, target
            lengths[0] += source is not None
            lengths[1] += target is not None
        if lengths[0] != lengths[1]:
            raise ValueError(
                f"{self.source} has {lengths[0]} lines but {self.target} has {lengths[1]}; "
                f"line n of one must translate line n of the other"
            )

    def identify(self, split: str, config: str | None = None) -> list[Json]:
        return [identify(self.source), identify(self.target)]


@dataclass(frozen=True)
class Tables(Source):
    """Files or saved directories of sentence pairs."""

    files: tuple[Path, ...]

    def readers(self, languages: Languages, split: str, columns: Columns) -> list[Iterator[Pair]]:
        return [read_table(path, columns or languages, split) for path in self.files]

    def identify(self, split: str, config: str | None = None) -> list[Json]:
        files: list[str | Path] = []
        for path in self.files:
            files += [each["filename"] for each in load_saved(path, split).cache_files] if path.is_dir() else [path]
        return list(map(identify, files))


@dataclass(frozen=True)
class EmbeddedCorpus(Source):
    """The phrasebook or the supplement, in both directions."""

    def readers(self, languages: Languages, split: str, columns: Columns) -> list[Iterator[Pair]]:
        pairs = self._pairs(split)
        if all(map(is_same_language, languages, ("en", "de"))):
            return [iter(pairs)]
        if all(map(is_same_language, languages, ("de", "en"))):
            return [((german, english) for english, german in pairs)]
        raise ValueError(f"{self.name}: is in English and German, en and de, not {' and '.join(languages)}")

    def identify(self, split: str, config: str | None = None) -> list[Json]:
        if self.name == "phrasebook":  # it never changes, and records of earlier runs stay valid
            return super().identify(split, config)
        pairs: list[Json] = [list(pair) for pair in self._pairs(split)]
        return [{"name": self.name, "split": split, "sha256": content_digest(pairs)}]

    def _pairs(self, split: str) -> list[Pair]:
        if split not in SPLIT_SIZES:
            raise ValueError(f"{self.name}: has no split {split!r}, only {', '.join(SPLIT_SIZES)}")
        return _EMBEDDED[self.name](split)


@dataclass(frozen=True)
class HubDataset(Source):
    """A dataset of the Hub; it has no reader until `load` has downloaded it."""

    rows: Dataset | None = None

    def load(self, split: str, config: str | None) -> "HubDataset":
        """Download the dataset."""
        return replace(self, rows=load_dataset(self.name, config, split=split))

    def readers(self, languages: Languages, split: str, columns: Columns) -> list[Iterator[Pair]]:
        return [] if self.rows is None else [dataset_pairs(self.rows, self.name, columns or languages)]


def find_source(names: Names) -> Source:
    """The source of two text files; of tables and patterns of them; an embedded corpus; or a dataset of the Hub."""
    words = [str(each) for each in ([names] if isinstance(names, str | Path) else names)]
    name = " and ".join(words)
    files: list[Path] = []
    for word in words:
        matches = [] if Path(word).exists() else sorted(glob.glob(word, recursive=True))
        files += map(Path, matches or [word])
    are_tables = [table_kind(file) is not None for file in files]
    if files and all(are_tables):
        return Tables(name, tuple(files))
    if len(files) == 2 and not any(are_tables):
        return TextFiles(name, *files)
    if len(files) == 1 and not files[0].exists():
        return EmbeddedCorpus(name) if name in _EMBEDDED else HubDataset(name)
    raise ValueError(
        f"{name or 'nothing'}: a corpus is two aligned text files, the source first, or tables: .jsonl, "
        f".parquet, .csv, .tsv, .tmx, or a directory of save_to_disk; unpack a .zip"
    )
