"""Corpora encoded and cleaned once (5.1), in a directory that every run and every rank maps into memory.

    preparation.json                the inputs and settings, and how many pairs cleaning dropped
    tokenizer/                      the shared vocabulary
    train/shard-00000-of-00009/...  each a `datasets.Dataset` of encoded pairs, cleaned
    validation/..., test/...        the same, not cleaned, with the text as `translation`
    cache/                          the text as `datasets` reads it, until all of it is encoded

The tokenizer and each shard appear atomically, with a manifest of digests: after an interruption, the same call
continues with what is missing. Memory does not grow with the corpus. If the user names no directory, it is one in the
cache of `datasets`, named by a digest of its inputs and settings.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import datasets
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from ..io.files import (
    Json,
    Manifest,
    atomic_directory,
    file_errors_as_os_error,
    find_damage,
    identify_tokenizer,
    locked,
    make_directory,
    manifest_digest,
    read_json,
    require_directory,
    require_same_manifest,
)
from ..io.typed_json import Record
from ..model.saved_model import load_tokenizer
from ..model.tokenization_vaswani import VaswaniTokenizer
from .cleaning import require_kept, require_tags
from .corpora import check_parallel_corpus, has_columns, identify_corpus, load_parallel_corpus, sentences, spread
from .mixing import MixedCorpus
from .preparation_arguments import MIXED, TRAINED_ON, PreparationArguments
from .shards import ShardFormat, read_shards, sum_counts, write_shards
from .training_data import TrainingData


_FORMAT = 2
_COMPARED = (
    "source_language",
    "target_language",
    "both_directions",
    "columns",
    "max_length",
    "max_ratio",
    "tokenizer_model",
    "vocab_size",
    "tokenizer_sample",
    "pairs_per_shard",
)
_DEFAULTS: dict[str, Json] = {"columns": None, "both_directions": False}  # of options that earlier records lack
# What a corpus is called in a saved directory, a dataset of the Hub or the phrasebook, where not by its split.
_PARTS = {"replay": "train", "synthetic": "train", "replay_test": "test"}
_VERSIONS = ("vaswani_transformer", "transformers", "tokenizers", "datasets")


@dataclass
class PreparedSplit:
    """What `preparation.json` says of a split.

    Attributes:
        inputs: Its files, as `identify_corpus` describes them.
        pairs: Number of sentence pairs; None until they are counted.
        shards: Number of directories that they are divided among.
        cleaning: Number of pairs dropped, by reason, and "kept"; empty until all is encoded.
    """

    inputs: list[Json]
    pairs: int | None
    shards: int = 0
    cleaning: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _PreparationRecord(Record):
    """`preparation.json`."""

    format: int
    settings: dict[str, Json]
    versions: Json
    splits: dict[str, PreparedSplit]


def load_corpora(args: PreparationArguments, directory: str | Path | None = None) -> TrainingData:
    """Load the corpora encoded and cleaned, after preparing what is not prepared yet.

    Args:
        args: What to load, and how.
        directory: Where they are prepared; by default in the cache of `datasets`.

    Raises:
        ValueError, OSError: As from `prepare_corpus` and `load_prepared`.
    """
    if directory is None:
        made_by: dict[str, Json] = {"format": _FORMAT, **_versions()}
        digest = manifest_digest({**_settings(args, None), **_inputs(args, {}), **made_by})
        directory = Path(datasets.config.HF_DATASETS_CACHE, "vaswani_transformer", digest[:32])
    prepare_corpus(directory, args)
    return load_prepared(directory, args.sources, args.ratios)


def prepare_corpus(directory: str | Path, args: PreparationArguments) -> dict[str, PreparedSplit]:
    """Prepare what is not prepared yet; another process that does so is waited for.

    Raises:
        ValueError: The directory was prepared from other corpora or with other settings, and is left as it is; or as
            from `load_parallel_corpus`, `VaswaniTokenizer.train` and `clean_corpus`.
        OSError: A file is missing, or the directory has other files in it.
    """
    preparation = _Preparation(Path(directory), args)
    if not all(map(preparation.is_done, args.sources)):
        make_directory("prepared", directory)
        with locked(Path(directory), "prepared", wait=True):
            preparation = _Preparation(Path(directory), args)
            preparation.complete()
    return {split: preparation.splits[split] for split in args.sources}


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
    preparation, splits = _Preparation(Path(directory)), dict.fromkeys(("train", *splits))
    for split in splits:
        if not preparation.is_done(split):
            raise ValueError(f"prepared: {directory} has no finished {split}; prepare it first")
    if PartialState().is_local_main_process:
        preparation.check(splits)
    corpora = {split: read_shards(preparation.folders(split)) for split in splits}
    train, mixed = [corpora["train"]], dict[str, MixedCorpus]()
    for name in (split for split in MIXED if split in corpora):
        drawn = max(1, round((ratios or {}).get(name, 1.0) * len(train[0])))
        cleaning, first = preparation.splits[name].cleaning, sum(map(len, train))
        mixed[name] = MixedCorpus(first, len(corpora[name]), drawn, cleaning)
        train.append(corpora[name])
    held_out = {split: corpus for split, corpus in corpora.items() if split not in TRAINED_ON}
    settings = preparation.settings
    return TrainingData.of(
        tokenizer=load_tokenizer(preparation.tokenizer, option="prepared"),
        train=concatenate_datasets(train),
        cleaning=preparation.splits["train"].cleaning,
        held_out=held_out,
        directions=[str(settings[name]) for name in _COMPARED[:2]] if settings["both_directions"] else [],
        mixed=mixed,
    )


class _Preparation:
    """A prepared directory and its record; nothing is written before `complete`.

    Args:
        directory: The directory, or where it will be.
        args: What is to be prepared in it; None to read it only.

    Raises:
        ValueError: It was prepared from other corpora, with other settings or by an earlier version; or it is damaged.
        OSError: It is something else.
    """

    def __init__(self, directory: Path, args: PreparationArguments | None = None) -> None:
        require_directory("prepared", directory)
        self.directory = directory
        self.tokenizer = directory / "tokenizer"
        self.settings: dict[str, Json] = {}
        self.splits: dict[str, PreparedSplit] = {}
        self.versions: Json = _versions()
        self._file = directory / "preparation.json"
        self._load()
        if args is not None:
            self._compare_and_extend(args)

    def _load(self) -> None:
        if not self._file.exists():
            if any(path.name != "cache" and path.suffix != ".tmp" for path in self.directory.glob("*")):
                raise FileExistsError(f"prepared: {self.directory} has other files in it; name another directory")
            return
        try:
            is_known = read_json(self._file).get("format") == _FORMAT
            record = _PreparationRecord.load(self._file) if is_known else None
        except ValueError as error:
            raise ValueError(f"prepared: {error}; delete {self.directory} to prepare it anew") from None
        if record is None:
            raise ValueError(
                f"prepared: {self.directory} was prepared by another version of this package; delete it to prepare it "
                f"anew, or name another directory"
            )
        if not self.tokenizer.exists():
            if any(self.directory.glob("*/shard-*")):
                raise ValueError(f"prepared: {self.tokenizer} is gone; delete {self.directory} to prepare it anew")
            return  # nothing is encoded yet, so everything may still change
        self.settings, self.versions, splits = {**_DEFAULTS, **record.settings}, record.versions, record.splits
        self.splits = {
            split: entry
            for split, entry in splits.items()
            if split == "train" or (self.directory / split).exists()  # a held-out split may be deleted and replaced
        }

    def _compare_and_extend(self, args: PreparationArguments) -> None:
        """Compare with the record, and add what is new."""
        self.args = args
        settings = _settings(args, self.settings.get("tokenizer"))
        inputs = _inputs(args, self.splits)
        before = {split: entry.inputs for split, entry in self.splits.items()}
        what = f"prepared: {self.directory} was prepared with other inputs or settings; it differs in"
        parts: dict[Path, dict[str, Json]] = {self.directory / split: {split: files} for split, files in inputs.items()}
        parts[self.directory] = {**settings, **parts.pop(self.directory / "train")}
        for deleted, now in reversed(parts.items()):
            advice = f"name another directory, or delete {deleted} to prepare that anew"
            require_same_manifest({**self.settings, **before}, now, what, advice)
        self.settings = settings
        for split, files in inputs.items():
            self.splits.setdefault(split, PreparedSplit(files, None)).inputs = files

    def complete(self) -> None:
        """Prepare what is missing, under the lock of the directory."""
        args, cache = self.args, self.directory / "cache"
        given = None
        if self.tokenizer.exists():
            self.check(())
        elif args.tokenizer is not None:
            given = load_tokenizer(args.tokenizer)
        sources = {split: source for split, source in args.sources.items() if not self.is_done(split)}
        if not self.tokenizer.exists():
            if args.columns and not any(map(has_columns, sources.values())):
                raise ValueError("columns: no corpus given is a table; leave the option out")
            for split, source in sources.items():
                check_parallel_corpus(source, args.languages, _PARTS.get(split, split), args.columns)
        corpora = {
            split: load_parallel_corpus(
                source,
                *args.languages,
                _PARTS.get(split, split),
                args.dataset_config,
                columns=args.columns,
                streaming=args.streaming,
                cache_dir=cache,
            )
            for split, source in sources.items()
        }
        self._count(corpora)
        if not self.tokenizer.exists():
            tokenizer = given or _train_tokenizer(corpora["train"], args)
            require_tags(tokenizer, args.tags, args.tokenizer)
            with (
                file_errors_as_os_error(f"prepared: cannot write {self.tokenizer}"),
                atomic_directory(self.tokenizer, "prepared") as staging,
            ):
                tokenizer.save_pretrained(staging)
                Manifest.of(staging).save(staging)
        for split, corpus in corpora.items():
            limits = (args.max_length, args.max_ratio) if split in TRAINED_ON else None
            form = ShardFormat(self.tokenizer, args.languages, limits, args.both_directions)
            write_shards(corpus, self.folders(split), args.pairs_per_shard, form, args.num_proc or os.cpu_count() or 1)
            totals = sum_counts(self.folders(split))
            if limits is not None:
                require_kept(totals)
            self.splits[split].cleaning = totals
            self._save()
        shutil.rmtree(cache, ignore_errors=True)

    def _count(self, corpora: dict[str, Dataset]) -> None:
        """Record the number of pairs.

        Raises:
            ValueError: The corpus differs from an earlier call's, or a file has changed while it was read.
        """
        for split, corpus in corpora.items():
            entry = self.splits[split]
            if entry.pairs not in (None, len(corpus)):
                raise ValueError(
                    f"prepared: {split} had {entry.pairs} pairs when {self.directory} was begun, and has {len(corpus)} "
                    f"now; delete the directory to prepare it anew"
                )
            entry.pairs, entry.shards = len(corpus), -(-len(corpus) // self.args.pairs_per_shard)
        for split, files in _inputs(self.args, self.splits).items():
            if files != self.splits[split].inputs:
                raise ValueError(f"{split}: a file has changed while it was read; repeat the command")
        self._save()

    def is_done(self, split: str) -> bool:
        return split in self.splits and self.splits[split].cleaning != {} and all(map(Path.exists, self.folders(split)))

    def check(self, splits: Iterable[str]) -> None:
        """Raise ValueError if a file of the tokenizer, or of splits that are done, is missing or has changed."""
        parts = {self.tokenizer: self.directory}
        parts.update({folder: folder for split in splits for folder in self.folders(split)})
        for folder, deleted in parts.items():
            if (damage := find_damage(folder)) is not None:
                raise ValueError(f"prepared: {folder}/{damage}; delete {deleted} to prepare it anew")

    def folders(self, split: str) -> list[Path]:
        count = self.splits[split].shards
        return [self.directory / split / f"shard-{number:05d}-of-{count:05d}" for number in range(count)]

    def _save(self) -> None:
        _PreparationRecord(_FORMAT, self.settings, self.versions, self.splits).save(self._file)


def _versions() -> dict[str, Json]:
    return {name: version(name) for name in _VERSIONS}


def _train_tokenizer(corpus: Dataset, args: PreparationArguments) -> PreTrainedTokenizerBase:
    sample = corpus.select(spread(len(corpus), args.tokenizer_sample))
    return VaswaniTokenizer.train(
        sentences(sample, args.languages),
        args.vocab_size,
        args.tokenizer_model,
        show_progress=False,
        special_tokens=args.tags,
    )


def _settings(args: PreparationArguments, known: Json) -> dict[str, Json]:
    """What, beside the corpora, the result depends on; `known` describes the tokenizer as it was."""
    settings: dict[str, Json] = {name: getattr(args, name) for name in _COMPARED}
    return {**settings, "tokenizer": None if args.tokenizer is None else identify_tokenizer(args.tokenizer, known)}


def _inputs(args: PreparationArguments, known: dict[str, PreparedSplit]) -> dict[str, list[Json]]:
    before = {split: entry.inputs for split, entry in known.items()}
    return {
        split: identify_corpus(source, before.get(split), args.dataset_config, _PARTS.get(split, split))
        for split, source in args.sources.items()
    }
