"""A directory of prepared corpora (5.1), which every run and every rank maps into memory.

    tokenizer/              the shared vocabulary
    train/                  a `datasets.Dataset` of encoded pairs, cleaned; likewise replay/ and synthetic/
    validation/, test/ ...  encoded pairs, not cleaned, with the text as `translation`
    cache/                  the text as `datasets` reads it, until all of it is encoded

`preparation.py` writes it. Each part appears atomically, with a manifest of its files and inputs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from accelerate import PartialState
from datasets import Dataset, concatenate_datasets, load_from_disk
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..model.languages_vaswani import language_tag
from ..options.data import MIXED, TRAINED_ON
from ..system.files import Json
from ..system.manifests import Manifest, find_damage
from ..system.messages import errors_begin_with, one_line
from .batching import MixedCorpus


TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class TrainingData:
    """The corpora to train and to score a model on.

    Attributes:
        tokenizer: The tokenizer that encoded them.
        train: Encoded pairs, cleaned: the training corpus, then the corpora that are mixed in.
        cleaning: For each training corpus, the number of pairs dropped, by reason, "kept", and added as "augmented".
        text: Held-out corpora, by split.
        encoded: Held-out corpora, encoded. With both directions, "test_reverse" is the reverse of "test".
        language_tags: Ids of the tags, by language; None with one direction and no tags.
        mixed: The corpora that are mixed in, by name.
        in_train: For each held-out corpus, the result of `count_in_train`; missing for data that an earlier version
            prepared.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    cleaning: dict[str, dict[str, int]]
    text: dict[str, Dataset]
    encoded: dict[str, Dataset]
    language_tags: dict[str, int] | None = None
    mixed: dict[str, MixedCorpus] = field(default_factory=dict)
    in_train: dict[str, dict[str, int]] = field(default_factory=dict)

    def describe_cleaning(self, name: str) -> str:
        """The number of sentence pairs of a training corpus: kept, in both directions, augmented, dropped by reason."""
        counts = dict(self.cleaning[name])
        kept, added = counts.pop("kept"), counts.pop("augmented", 0)
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
        pairs = (kept + sum(counts.values()) - added) // 2
        twice = f"{pairs:,} in both directions; " if self.language_tags and name != "synthetic" else ""
        changed = f"added by augmentation: {added:,}; " if added else ""
        return f"{kept:,} sentence pairs ({twice}{changed}dropped: {dropped})"


def read_notes(directory: Path, part: str) -> dict[str, Json]:
    """Read the origin of a part from its manifest: options, and the description of each corpus."""
    try:
        return Manifest.load(directory / part).notes
    except (OSError, ValueError) as error:
        raise _damage(directory, part, one_line(error)) from None


def _damage(directory: Path, part: str, reason: str) -> ValueError:
    """The error for a damaged part; with the tokenizer, all parts must be prepared again."""
    deleted = directory if part == TOKENIZER else directory / part
    return ValueError(f"prepared: {directory / part}: {reason}; delete {deleted} to prepare it anew")


def load_prepared(
    directory: str | Path, splits: Iterable[str] = (), ratios: Mapping[str, float] | None = None
) -> TrainingData:
    """Map prepared corpora into memory: the training corpus, and other splits.

    Args:
        directory: As `preparation.py` wrote it.
        splits: Splits to load in addition to "train".
        ratios: For each split that is mixed in, its pairs in an epoch for each pair of "train"; by default 1.

    Raises:
        ValueError: A split is missing, or a file has changed since it was written; the first process of each machine
            checks this.
    """
    directory, names = Path(directory), list(dict.fromkeys(("train", *splits)))
    notes = {part: read_notes(directory, part) for part in (TOKENIZER, *names)}
    if PartialState().is_local_main_process:
        for part in notes:
            if (damage := find_damage(directory / part)) is not None:
                raise _damage(directory, part, damage)
    corpora = {name: load_from_disk(directory / name) for name in names}
    mixed = _mix(corpora, ratios or {})
    held_out = {name: corpus for name, corpus in corpora.items() if name not in TRAINED_ON}
    tokenizer, tags = load_tokenizer(directory / TOKENIZER, option="prepared"), None
    if notes["train"]["both_directions"]:
        held_out = _by_direction(held_out)
        languages = (str(notes["train"][name]) for name in ("source_language", "target_language"))
        tags = {code: tokenizer.convert_tokens_to_ids(language_tag(code)) for code in languages}
    return TrainingData(
        tokenizer=tokenizer,
        train=concatenate_datasets([corpora["train"], *(corpora[name] for name in mixed)]),
        cleaning={name: cast(dict[str, int], notes[name]["cleaning"]) for name in ("train", *mixed)},
        text={split: rows.select_columns("translation") for split, rows in held_out.items()},
        encoded={split: rows.remove_columns("translation") for split, rows in held_out.items()},
        language_tags=tags,
        mixed=mixed,
        in_train={name: cast(dict[str, int], counts) for name in names if (counts := notes[name].get("in_train"))},
    )


def _mix(corpora: Mapping[str, Dataset], ratios: Mapping[str, float]) -> dict[str, MixedCorpus]:
    """The corpora that are mixed in; their rows follow the rows of "train"."""
    mixed: dict[str, MixedCorpus] = {}
    first = trained = len(corpora["train"])
    for name in MIXED:
        if name in corpora:
            drawn = max(1, round(ratios.get(name, 1.0) * trained))
            mixed[name] = MixedCorpus(first, len(corpora[name]), drawn)
            first += len(corpora[name])
    return mixed


def _by_direction(corpora: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Split each corpus whose pairs and their reverses alternate in two."""
    return {
        name + suffix: rows.select(range(first, len(rows), 2))
        for name, rows in corpora.items()
        for first, suffix in enumerate(("", "_reverse"))
    }


def load_tokenizer(name: str | Path, *, option: str = "tokenizer") -> PreTrainedTokenizerBase:
    """Load a tokenizer alone, without running remote code; a ValueError of one line says why it cannot be loaded."""
    with errors_begin_with(f"{option}: {name}"):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
