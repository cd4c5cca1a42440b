"""A directory of prepared corpora (5.1), which every run and every rank maps into memory.

    tokenizer/              the shared vocabulary
    train/                  a `datasets.Dataset` of encoded pairs, cleaned; so are replay/ and synthetic/
    validation/, test/ ...  the same, not cleaned, with the text as `translation`
    cache/                  the text as `datasets` reads it, until all of it is encoded

`preparation.py` writes it. Each part appears atomically, with a manifest of its files and inputs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from accelerate import PartialState
from datasets import Dataset, concatenate_datasets, load_from_disk

from ..io.files import Json
from ..io.manifests import Manifest, find_damage, require_same_manifest
from ..io.typed_json import from_json
from ..model.languages_vaswani import language_tag
from ..model.saved_model import load_tokenizer
from .mixing import MixedCorpus
from .preparation_arguments import MIXED, TRAINED_ON
from .training_data import TrainingData


TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class PreparedSplit:
    """A prepared corpus.

    Attributes:
        pairs: Number of its sentence pairs.
        cleaning: How many pairs cleaning dropped, by reason, and how many it "kept".
    """

    pairs: int
    cleaning: dict[str, int]


@dataclass(frozen=True)
class PreparedDirectory:
    """A prepared directory, which need not exist."""

    path: Path

    def origin(self, part: str) -> dict[str, Json] | None:
        """What a part was made of: options, and the description of each corpus; None if it is not made yet.

        Raises:
            ValueError: Its manifest is missing or damaged.
        """
        folder = self.path / part
        if not folder.exists():
            return None
        try:
            return Manifest.load(folder).notes
        except (OSError, ValueError) as error:
            raise ValueError(f"prepared: {folder}: {error}; delete it to prepare it anew") from None

    def parts(self) -> list[str]:
        """Names of the parts that are made, the tokenizer first.

        Raises:
            FileExistsError: The directory has other files in it.
        """
        names = sorted(each.name for each in self.path.glob("[!.]*") if each.name != "cache")
        if names and TOKENIZER not in names:
            raise FileExistsError(f"prepared: {self.path} has files in it, but no tokenizer; name another directory")
        return sorted(names, key=lambda name: name != TOKENIZER)

    def inputs(self) -> dict[str, Json]:
        """The result of `identify_inputs` for what is prepared."""
        inputs: dict[str, Json] = {}
        for part in self.parts():
            origin = self.origin(part) or {}
            inputs |= {name: origin[name] for name in ("train", TOKENIZER, part) if name in origin}
        return inputs

    def split(self, name: str) -> PreparedSplit:
        return from_json(PreparedSplit, self.origin(name))

    def require_same(self, part: str, origin: Mapping[str, Json]) -> None:
        """Raise a ValueError if a part was made of something else."""
        what = f"prepared: {self.path} was prepared with other inputs or settings; it differs in"
        deleted = self.path if part in (TOKENIZER, "train") else self.path / part
        advice = f"name another directory, or delete {deleted} to prepare that anew"
        require_same_manifest(self.origin(part) or {}, origin, what, advice)

    def require_undamaged(self, parts: Iterable[str]) -> None:
        """Raise a ValueError if a file is missing or has changed since it was written."""
        for part in parts:
            if (damage := find_damage(self.path / part)) is not None:
                deleted = self.path if part == TOKENIZER else self.path / part
                raise ValueError(f"prepared: {self.path / part}: {damage}; delete {deleted} to prepare it anew")


def load_prepared(
    directory: str | Path, splits: Iterable[str] = (), ratios: Mapping[str, float] | None = None
) -> TrainingData:
    """Map what `prepare_corpus` made of the training corpus, and of other splits, into memory.

    Args:
        directory: Where they were prepared.
        splits: Which ones, beside "train".
        ratios: Pairs in an epoch for each pair of "train", of each split that is mixed in; by default 1.

    Raises:
        ValueError: A split is missing, or a file has changed since it was written, which the first process of each
            machine checks.
    """
    prepared = PreparedDirectory(Path(directory))
    names = list(dict.fromkeys(("train", *splits)))
    if missing := [name for name in names if prepared.origin(name) is None]:
        raise ValueError(f"prepared: {prepared.path} has no {missing[0]}; prepare it first")
    if PartialState().is_local_main_process:
        prepared.require_undamaged((TOKENIZER, *names))
    corpora = {name: load_from_disk(prepared.path / name) for name in names}
    cleaning = {name: prepared.split(name).cleaning for name in names}
    train, mixed = [corpora["train"]], dict[str, MixedCorpus]()
    for name in (name for name in MIXED if name in corpora):
        drawn = max(1, round((ratios or {}).get(name, 1.0) * len(train[0])))
        mixed[name] = MixedCorpus(sum(map(len, train)), len(corpora[name]), drawn, cleaning[name])
        train.append(corpora[name])
    held_out = {name: corpus for name, corpus in corpora.items() if name not in TRAINED_ON}
    tokenizer, tags = load_tokenizer(prepared.path / TOKENIZER, option="prepared"), None
    settings = prepared.origin("train") or {}
    if settings["both_directions"]:
        held_out = _by_direction(held_out)
        languages = str(settings["source_language"]), str(settings["target_language"])
        tags = {code: tokenizer.convert_tokens_to_ids(language_tag(code)) for code in languages}
    return TrainingData(
        tokenizer=tokenizer,
        train=concatenate_datasets(train),
        cleaning=cleaning["train"],
        text={split: rows.select_columns("translation") for split, rows in held_out.items()},
        encoded={split: rows.remove_columns("translation") for split, rows in held_out.items()},
        language_tags=tags,
        mixed=mixed,
    )


def _by_direction(corpora: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Corpora whose pairs and their reverses alternate, as two splits each."""
    return {
        name + suffix: rows.select(range(first, len(rows), 2))
        for name, rows in corpora.items()
        for first, suffix in enumerate(("", "_reverse"))
    }
