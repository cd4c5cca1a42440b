"""A directory of prepared corpora (5.1), which every run and every rank maps into memory.

    preparation.json                the inputs and settings, and how many pairs cleaning dropped
    tokenizer/                      the shared vocabulary
    train/shard-00000-of-00009/...  each a `datasets.Dataset` of encoded pairs, cleaned
    validation/..., test/...        the same, not cleaned, with the text as `translation`
    cache/                          the text as `datasets` reads it, until all of it is encoded

`preparation.py` writes it: the tokenizer and each shard appear atomically, with a manifest of digests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from accelerate import PartialState
from datasets import concatenate_datasets

from ..io.files import Json, find_damage, require_directory, require_same_manifest
from ..io.typed_json import Record
from ..model.languages_vaswani import language_tag
from ..model.saved_model import load_tokenizer
from .mixing import MixedCorpus
from .preparation_arguments import MIXED, TRAINED_ON
from .shards import read_shards
from .training_data import TrainingData


FORMAT = 2
RECORD_NAME = "preparation.json"
_VERSIONS = ("vaswani_transformer", "transformers", "tokenizers", "datasets")


@dataclass(frozen=True)
class PreparedSplit:
    """What `preparation.json` says of a split.

    Attributes:
        inputs: Its files, as `identify_corpus` describes them.
        pairs: Number of sentence pairs.
        shards: Number of directories that they are divided among.
        cleaning: Number of pairs dropped, by reason, and "kept"; empty until all is encoded.
    """

    inputs: Json
    pairs: int
    shards: int = 0
    cleaning: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparationRecord(Record):
    """`preparation.json`.

    Attributes:
        settings: Options that decide the encoded pairs; "pairs_per_shard", and the "tokenizer" that was given.
        versions: Of the packages that began it.
        splits: Those that were begun.
        format: `FORMAT`, or that of an earlier version.
    """

    settings: dict[str, Json]
    versions: Json
    splits: dict[str, PreparedSplit]
    format: int = 0


@dataclass(frozen=True)
class PreparedDirectory:
    """A prepared directory as it was when it was opened.

    Attributes:
        path: The directory, which need not exist.
        record: Its record; without settings and splits until there is a vocabulary, since all may change before.
    """

    path: Path
    record: PreparationRecord

    @classmethod
    def open(cls, path: str | Path) -> "PreparedDirectory":
        """Read the record of a directory.

        Raises:
            ValueError: It was prepared by an earlier version, or is damaged.
            OSError: It is something else.
        """
        path = Path(path)
        require_directory("prepared", path)
        nothing = cls(path, PreparationRecord({}, package_versions(), {}, FORMAT))
        file = path / RECORD_NAME
        if not file.exists():
            if any(each.name != "cache" and each.suffix not in (".tmp", ".lock") for each in path.glob("*")):
                raise FileExistsError(f"prepared: {path} has other files in it; name another directory")
            return nothing
        try:
            record = PreparationRecord.load(file)
        except ValueError as error:
            raise ValueError(f"prepared: {error}; delete {path} to prepare it anew") from None
        if record.format != FORMAT:
            raise ValueError(
                f"prepared: {path} was prepared by another version of this package; delete it to prepare it anew, or "
                f"name another directory"
            )
        if not nothing.tokenizer.exists():
            if any(path.glob("*/shard-*")):
                raise ValueError(f"prepared: {nothing.tokenizer} is gone; delete {path} to prepare it anew")
            return nothing
        splits = {
            split: entry
            for split, entry in record.splits.items()
            if split == "train" or (path / split).exists()  # a held-out split may be deleted and replaced
        }
        return cls(path, replace(record, splits=splits))

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def inputs(self) -> dict[str, Json]:
        """The result of `identify_inputs` for what was prepared; empty until there is a vocabulary."""
        files: dict[str, Json] = {split: entry.inputs for split, entry in self.record.splits.items()}
        return {**files, "tokenizer": self.record.settings.get("tokenizer")} if files else {}

    def shards(self, split: str) -> list[Path]:
        count = self.record.splits[split].shards
        return [self.path / split / f"shard-{number:05d}-of-{count:05d}" for number in range(count)]

    def has(self, split: str) -> bool:
        """Whether a split is finished."""
        is_encoded = split in self.record.splits and self.record.splits[split].cleaning != {}
        return is_encoded and all(map(Path.exists, self.shards(split)))

    def require_same(self, settings: Mapping[str, Json], inputs: Mapping[str, Json]) -> None:
        """Raise ValueError if anything was prepared from other inputs, or with other settings."""
        recorded = {**self.record.settings, **self.inputs}
        what = f"prepared: {self.path} was prepared with other inputs or settings; it differs in"
        of_all = ("tokenizer", "train")
        parts: dict[Path, dict[str, Json]] = {self.path: {**settings, **{name: inputs[name] for name in of_all}}}
        parts.update({self.path / split: {split: files} for split, files in inputs.items() if split not in of_all})
        for deleted, now in parts.items():
            advice = f"name another directory, or delete {deleted} to prepare that anew"
            require_same_manifest(recorded, now, what, advice)

    def require_undamaged(self, splits: Iterable[str]) -> None:
        """Raise ValueError if a file of the tokenizer, or of splits that are finished, is missing or has changed."""
        parts = {self.tokenizer: self.path}
        parts.update({folder: folder for split in splits for folder in self.shards(split)})
        for folder, deleted in parts.items():
            if (damage := find_damage(folder)) is not None:
                raise ValueError(f"prepared: {folder}/{damage}; delete {deleted} to prepare it anew")


def load_prepared(
    directory: str | Path, splits: Iterable[str] = (), ratios: Mapping[str, float] | None = None
) -> TrainingData:
    """Map what `prepare_corpus` made of the training corpus, and of other splits, into memory.

    Args:
        directory: Where they were prepared.
        splits: Which ones, beside "train".
        ratios: Pairs in an epoch for each pair of "train", of each split that is mixed in; by default 1.

    Raises:
        ValueError: A split is missing or incomplete, or a file has changed since it was written, which the first
            process of each machine checks.
    """
    prepared = PreparedDirectory.open(directory)
    names = list(dict.fromkeys(("train", *splits)))
    for split in names:
        if not prepared.has(split):
            raise ValueError(f"prepared: {prepared.path} has no finished {split}; prepare it first")
    if PartialState().is_local_main_process:
        prepared.require_undamaged(names)
    corpora = {split: read_shards(prepared.shards(split)) for split in names}
    train, mixed = [corpora["train"]], dict[str, MixedCorpus]()
    for name in (split for split in MIXED if split in corpora):
        drawn = max(1, round((ratios or {}).get(name, 1.0) * len(train[0])))
        cleaning, first = prepared.record.splits[name].cleaning, sum(map(len, train))
        mixed[name] = MixedCorpus(first, len(corpora[name]), drawn, cleaning)
        train.append(corpora[name])
    held_out = {split: corpus for split, corpus in corpora.items() if split not in TRAINED_ON}
    tokenizer, tags = load_tokenizer(prepared.tokenizer, option="prepared"), None
    settings = prepared.record.settings
    if settings["both_directions"]:  # pairs and their reverses alternate
        held_out = {
            split + suffix: rows.select(range(first, len(rows), 2))
            for split, rows in held_out.items()
            for first, suffix in enumerate(("", "_reverse"))
        }
        languages = str(settings["source_language"]), str(settings["target_language"])
        tags = {code: tokenizer.convert_tokens_to_ids(language_tag(code)) for code in languages}
    return TrainingData(
        tokenizer=tokenizer,
        train=concatenate_datasets(train),
        cleaning=prepared.record.splits["train"].cleaning,
        text={split: rows.select_columns("translation") for split, rows in held_out.items()},
        encoded={split: rows.remove_columns("translation") for split, rows in held_out.items()},
        language_tags=tags,
        mixed=mixed,
    )


def package_versions() -> dict[str, Json]:
    """Versions of the packages that decide what a preparation writes."""
    return {name: version(name) for name in _VERSIONS}
