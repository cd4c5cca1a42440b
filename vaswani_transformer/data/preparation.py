"""A corpus prepared once, ahead of training (5.1): a directory that every run and every process maps into memory.

    preparation.json                what was prepared, from what and how, and what cleaning dropped
    tokenizer/                      the shared vocabulary
    train/shard-00000-of-00009/...  each a `datasets.Dataset` of encoded pairs, cleaned
    validation/..., test/...        the same, not cleaned, with the text as `translation`

The text is read as it goes, so memory does not grow with the corpus. Whatever lies in the directory was written whole:
after an interruption, only the rest is done.
"""

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..arguments import COUNT, Interval, check_values
from ..files import check_seal, file_digest, read_json, require_directory, seal_directory, write_whole
from ..model.tokenization_vaswani import VaswaniTokenizer
from ..saved_model import load_tokenizer
from .cleaning import require_kept
from .corpora import evenly
from .shards import ShardFormat, read_shards, sum_totals, whole_directory, write_shards
from .streams import PairStream, open_stream


@dataclass
class PreparationArguments:
    """Corpora, cleaning and vocabulary (5.1)."""

    source_language: str = field(default="en", metadata={"help": "Code of the language to translate from."})
    target_language: str = field(default="de", metadata={"help": "Code of the language to translate into."})
    train: list[str] | None = field(
        default=None,
        metadata={
            "help": "Two aligned text files (plain, .gz, .xz), one JSON-lines or Parquet file, a dataset of the Hub, "
            "or the embedded 'phrasebook'."
        },
    )
    validation: list[str] | None = field(default=None, metadata={"help": "As train."})
    test: list[str] | None = field(default=None, metadata={"help": "As train."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset, as 'de-en'."})
    streaming: bool = field(
        default=False, metadata={"help": "Read a Hub dataset through the network, without a copy in the cache."}
    )
    max_length: int = field(
        default=256, metadata={"interval": COUNT, "help": "Longest sentence trained on, in sub-words."}
    )
    max_ratio: float = field(
        default=5.0,
        metadata={"interval": Interval(minimum=1), "help": "Longest side over shortest side of a pair trained on."},
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "A saved tokenizer; by default one is trained on the training corpus."}
    )
    tokenizer_model: Literal["bpe", "wordpiece"] = field(default="bpe", metadata={"help": "Kind of vocabulary."})
    vocab_size: int = field(default=37000, metadata={"interval": COUNT, "help": "Entries of the shared vocabulary."})
    tokenizer_sample: int = field(
        default=1_000_000,
        metadata={"interval": COUNT, "help": "Pairs, from all over the training corpus, to train the tokenizer on."},
    )
    num_proc: int | None = field(
        default=None,
        metadata={
            "interval": Interval(minimum=1, maximum=1024),
            "help": "Processes that encode; by default one, and to prepare ahead, one a core.",
        },
    )
    pairs_per_shard: int = field(
        default=50_000, metadata={"interval": COUNT, "help": "Pairs of a prepared shard, encoded at a time."}
    )

    def __post_init__(self) -> None:
        check_values(self)

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language

    @property
    def sources(self) -> dict[str, list[str]]:
        """The corpora that were given, by split.

        Raises:
            ValueError: None to train on.
        """
        if not self.train:
            raise ValueError("train: give a corpus to train on, such as `train: [train.en, train.de]`")
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: source for split, source in given.items() if source}


@dataclass(frozen=True)
class TrainingData:
    """What a model is trained on, and scored on.

    Attributes:
        tokenizer: That of all that follows.
        train: Encoded pairs, cleaned.
        cleaning: How many of them cleaning dropped, by reason, and how many it kept.
        text: Corpora to score on, by split.
        encoded: The same, encoded.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    cleaning: dict[str, int]
    text: dict[str, Dataset]
    encoded: dict[str, Dataset]


def prepare_corpus(directory: str | Path, args: PreparationArguments) -> dict[str, Any]:
    """Prepare what of the corpora is not prepared yet.

    Returns:
        By split, what `preparation.json` says of it: "pairs" read, and the counts of "cleaning".

    Raises:
        ValueError: The directory was prepared from another corpus or otherwise, which is left as it is; or as from
            `open_stream`, `VaswaniTokenizer.train` and `clean_corpus`.
        OSError: A file is missing, or the directory has other files in it.
    """
    preparation = Preparation(Path(directory))
    preparation.begin(args)
    if preparation.tokenizer.exists():
        preparation.check()
    given = None
    if args.tokenizer is not None and not preparation.tokenizer.exists():
        given = load_tokenizer(args.tokenizer)
    streams = {
        split: open_stream(source, *args.languages, split, args.dataset_config, args.streaming)
        for split, source in args.sources.items()
        if not preparation.is_done(split)
    }
    preparation.count(streams)
    if not preparation.tokenizer.exists():
        preparation.save(given or _train_tokenizer(streams["train"], preparation.splits["train"]["pairs"], args))
    for split, stream in streams.items():
        preparation.encode(split, stream, args)
    return {split: preparation.splits[split] for split in args.sources}


def _train_tokenizer(stream: PairStream, pairs: int, args: PreparationArguments) -> PreTrainedTokenizerBase:
    text = chain.from_iterable(evenly(stream.read(), pairs, args.tokenizer_sample))
    return VaswaniTokenizer.train(text, args.vocab_size, args.tokenizer_model)


def load_prepared(directory: str | Path, splits: Iterable[str] = ()) -> TrainingData:
    """What `prepare_corpus` left of the training corpus, and of other splits, mapped into memory.

    Raises:
        ValueError: One of them is not there, not whole, or a file has changed since it was written, which the first
            process of each machine looks for.
    """
    preparation = Preparation(Path(directory))
    for split in ("train", *splits):
        if not preparation.is_done(split):
            raise ValueError(f"prepared: {directory} has no finished {split}; prepare it first")
    if PartialState().is_local_main_process:
        preparation.check(("train", *splits))
    held_out = {split: read_shards(preparation.folders(split)) for split in splits if split != "train"}
    return TrainingData(
        tokenizer=load_tokenizer(preparation.tokenizer, option="prepared"),
        train=read_shards(preparation.folders("train")),
        cleaning=preparation.splits["train"]["cleaning"],
        text={split: dataset.select_columns("translation") for split, dataset in held_out.items()},
        encoded={split: dataset.remove_columns("translation") for split, dataset in held_out.items()},
    )


class Preparation:
    """A directory of that kind, and its record `preparation.json`.

    Attributes:
        tokenizer: Directory of the tokenizer.
        record: "settings", "versions", and by split, in "splits", the "inputs" and once they are known, the number of
            "pairs" and the counts of "cleaning".
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokenizer = directory / "tokenizer"
        self._file = directory / "preparation.json"
        self.record: dict[str, Any] = {"settings": {}, "splits": {}}
        if self._file.exists():
            record = read_json(self._file)
            if not isinstance(record, dict):
                raise ValueError(f"prepared: {self._file} is damaged; delete {directory} to prepare it anew")
            self.record = record

    @property
    def splits(self) -> dict[str, dict[str, Any]]:
        return self.record["splits"]

    def begin(self, args: PreparationArguments) -> None:
        """Take up what is there, of which nothing is changed yet.

        Raises:
            ValueError: It was prepared from another corpus, or otherwise.
            FileExistsError: It is something else.
        """
        require_directory("prepared", self.directory)
        self._forget_what_was_deleted()
        settings = _settings(args, self.record["settings"])
        inputs = {
            split: [
                identify(name, self.splits.get(split, {}).get("inputs", []), config=args.dataset_config, split=split)
                for name in names
            ]
            for split, names in args.sources.items()
        }
        self._require_same(settings, inputs)
        for split, identities in inputs.items():
            self.splits.setdefault(split, {})["inputs"] = identities
        self.record["settings"] = settings
        self.record.setdefault("versions", {name: version(name) for name in _VERSIONS})

    def _forget_what_was_deleted(self) -> None:
        if not self._file.exists() and any(path.suffix != ".tmp" for path in self.directory.glob("*")):
            raise FileExistsError(f"prepared: {self.directory} has other files in it; name another directory")
        if not self.tokenizer.exists():
            if any(self.directory.glob("*/shard-*")):
                raise ValueError(f"prepared: {self.tokenizer} is gone; delete {self.directory} to prepare it anew")
            self.record = {"settings": {}, "splits": {}}  # there is nothing yet that another corpus would not suit
        for split in self.splits.keys() - {"train"}:
            if not (self.directory / split).exists():
                del self.splits[split]

    def _require_same(self, settings: dict[str, Any], inputs: dict[str, list[dict[str, Any]]]) -> None:
        before = self.record["settings"]
        differing = {
            name: f"{name} ({_shown(before[name])} then, {_shown(now)} now)"
            for name, now in settings.items()
            if name in before and _content(before[name]) != _content(now)
        }
        for split, now in inputs.items():
            then = self.splits.get(split, {}).get("inputs", now)
            if [_content(one) for one in then] != [_content(one) for one in now]:
                names = [_shown(one) for one in now if _content(one) not in [_content(other) for other in then]]
                differing[split] = f"{split} ({' and '.join(names) or 'order'})"
        if differing:
            only_held_out = not differing.keys() & {"train", *settings}
            places = [str(self.directory / split) for split in differing] if only_held_out else [str(self.directory)]
            raise ValueError(
                f"prepared: {self.directory} was prepared otherwise; it differs in {', '.join(differing.values())}; "
                f"name another directory, or delete {' and '.join(places)} to prepare that anew"
            )

    def count(self, streams: dict[str, PairStream]) -> None:
        """Find how many pairs there are, and what is wrong in the files, before anything is made of them."""
        for split, stream in tqdm(streams.items(), "Reading the corpora", unit="corpora", disable=not streams):
            entry = self.splits[split]
            is_known = "pairs" in entry and all("file" in one for one in entry["inputs"])
            pairs = entry["pairs"] if is_known else stream.count()
            if entry.setdefault("pairs", pairs) != pairs:
                raise ValueError(
                    f"prepared: {split} had {entry['pairs']} pairs when {self.directory} was begun, and has {pairs} "
                    f"now; delete the directory to prepare it anew"
                )
        self._write()

    def save(self, tokenizer: PreTrainedTokenizerBase) -> None:
        with whole_directory(self.tokenizer) as temporary:
            tokenizer.save_pretrained(temporary)
            seal_directory(temporary)

    def encode(self, split: str, stream: PairStream, args: PreparationArguments) -> None:
        """Write the shards of a split that are missing, and count what cleaning dropped."""
        entry, directory = self.splits[split], self.directory / split
        write_shards(stream.read(), entry["pairs"], directory, self._form(split), args.num_proc or os.cpu_count() or 1)
        totals = sum_totals(self.folders(split))
        if split == "train":
            require_kept(totals)
        for unfinished in directory.glob("*.tmp"):  # of processes that were killed
            shutil.rmtree(unfinished, ignore_errors=True)
        entry["cleaning"] = totals
        self._write()

    def is_done(self, split: str) -> bool:
        return "cleaning" in self.splits.get(split, {}) and all(folder.exists() for folder in self.folders(split))

    def check(self, splits: Iterable[str] = ()) -> None:
        """Raise ValueError if a file of the tokenizer, or of splits that are done, is missing or has changed."""
        try:
            check_seal(self.tokenizer)
        except ValueError as error:
            raise ValueError(f"prepared: {error}; delete {self.directory} to prepare it anew") from None
        for folder in chain.from_iterable(map(self.folders, dict.fromkeys(splits))):
            try:
                check_seal(folder)
            except ValueError as error:
                raise ValueError(f"prepared: {error}; delete {folder} to prepare it anew") from None

    def folders(self, split: str) -> list[Path]:
        return self._form(split).folders(self.directory / split, self.splits[split]["pairs"])

    def _form(self, split: str) -> ShardFormat:
        settings = self.record["settings"]
        return ShardFormat(
            tokenizer=self.tokenizer,
            languages=(settings["source_language"], settings["target_language"]),
            limits=(settings["max_length"], settings["max_ratio"]) if split == "train" else None,
            size=settings["pairs_per_shard"],
        )

    def _write(self) -> None:
        text = json.dumps(self.record, indent=2, ensure_ascii=False)
        if self._file.exists() and self._file.read_text(encoding="utf-8") == text:
            return  # it may be on a disk that this machine cannot write to
        self.directory.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, text)


_COMPARED = (
    "source_language",
    "target_language",
    "max_length",
    "max_ratio",
    "tokenizer_model",
    "vocab_size",
    "tokenizer_sample",
    "pairs_per_shard",
)
_VERSIONS = ("vaswani_transformer", "transformers", "tokenizers", "datasets")


def _settings(args: PreparationArguments, before: dict[str, Any]) -> dict[str, Any]:
    """What, beside the corpora, makes the result what it is."""
    settings = {name: getattr(args, name) for name in _COMPARED}
    if args.tokenizer is None:
        return settings | {"tokenizer": None}
    file = Path(args.tokenizer, "tokenizer.json")
    known = before.get("tokenizer") or {}
    return settings | {
        "tokenizer": identify(str(file) if file.is_file() or "file" in known else args.tokenizer, [known])
    }


def identify(name: str, known: Sequence[dict[str, Any]], **place: str | None) -> dict[str, Any]:
    """What a file is recognised by; or a name of something else, with where in it one looks.

    Args:
        name: A file's, or another.
        known: What was found before. Of a file that seems untouched, the digest is taken from there; a file that is
            gone is taken for the one of that name, since what was made of it can do without.
        place: What to note with a name.
    """
    path = Path(name)
    if not path.is_file():
        gone = [one for one in known if "file" in one and Path(one["file"]).name == path.name]
        return gone[0] if gone else {"name": name, **place}
    found = {"file": str(path.absolute()), "size": path.stat().st_size, "modified": path.stat().st_mtime_ns}
    for one in known:
        if found.items() <= one.items():
            return one
    return {**found, "sha256": file_digest(path)}


def _shown(value: Any) -> Any:
    return value.get("file", value.get("name")) if isinstance(value, dict) else value


def _content(identity: Any) -> Any:
    """What two identities of the same content have in common."""
    return identity["sha256"] if isinstance(identity, dict) and "sha256" in identity else identity
