"""Options of the corpora: their sources, cleaning, mixing and encoding (5.1)."""

from dataclasses import dataclass, replace
from typing import Literal, Self, cast

from transformers import PreTrainedConfig

from ..model.languages_vaswani import language_tag
from ..options.arguments import COUNT, Interval, check_values, option, refuse_unused
from .cleaning import CleaningRules
from .corpora import Corpus, resolve_languages
from .sources import find_source


# Corpora whose pairs are drawn anew for each epoch, and all corpora that are cleaned and trained on.
MIXED = ("replay", "synthetic")
TRAINED_ON = ("train", *MIXED)
# The split of each corpus in a saved directory, a dataset of the Hub or the phrasebook.
_PARTS = {**dict.fromkeys(TRAINED_ON, "train"), "validation": "validation", "test": "test", "replay_test": "test"}
_RATIO = Interval(above=0, maximum=1000)


@dataclass(frozen=True)
class CorpusArguments:
    """Languages and corpora (5.1)."""

    option_group = "data"

    source_language: str | None = option(
        None,
        "Code of the language to translate from; by default that of the model to fine-tune or the suffix of the first "
        "text file.",
        decides="data",
    )
    target_language: str | None = option(
        None, "Code of the language to translate into; by default as source_language.", decides="data"
    )
    both_directions: bool = option(
        False,
        "Translate from target to source as well: each source begins with the tag of its target, as <2de>.",
        decides="data",
    )
    train: list[str] | None = option(
        None,
        "Two aligned text files (plain, .gz, .bz2, .xz); or tables: JSON lines, Parquet, CSV, TSV, TMX, directories of "
        "save_to_disk, or a quoted pattern, such as 'part-*.parquet'; or a dataset of the Hub, or 'phrasebook', which "
        "is embedded.",
        decides="inputs",
    )
    validation: list[str] | None = option(None, "As train.", decides="inputs")
    test: list[str] | None = option(None, "As train.", decides="inputs")
    replay: list[str] | None = option(
        None,
        "As train: a corpus mixed in, such as that of the model to fine-tune, so that it is not forgotten.",
        decides="inputs",
    )
    replay_ratio: float = option(
        1.0,
        "Pairs of replay in each epoch, drawn anew, for each pair of train; they repeat if need be.",
        _RATIO,
        decides="weights",
    )
    synthetic: list[str] | None = option(
        None,
        "As train: a corpus mixed in. One side is machine-translated, as by translate.py. With both_directions, these "
        "pairs are not reversed.",
        decides="inputs",
    )
    synthetic_ratio: float = option(1.0, "As replay_ratio.", _RATIO, decides="weights")
    replay_test: list[str] | None = option(
        None,
        "As test: a second test set, such as that of the model to fine-tune, to see what it forgets.",
        decides="inputs",
    )
    columns: list[str] | None = option(
        None,
        "Columns of source and target in tables, by name or, without a header, by number from 1; in TMX, languages. By "
        "default the codes of the languages.",
        decides="data",
    )
    dataset_config: str | None = option(None, "Configuration of a Hub dataset, as 'de-en'.", decides="inputs")
    streaming: bool = option(
        False, "Read a Hub dataset through the network, without downloading its files first.", decides=None
    )


@dataclass(frozen=True)
class PreparationArguments(CleaningRules, CorpusArguments):
    """Corpora, cleaning and vocabulary (5.1)."""

    option_group = "data"

    tokenizer: str | None = option(
        None, "A saved tokenizer; by default one is trained on the training corpus.", decides="inputs"
    )
    tokenizer_model: Literal["bpe", "wordpiece"] = option("bpe", "Kind of vocabulary.", decides="data")
    vocab_size: int = option(37000, "Entries of the shared vocabulary.", COUNT, decides="data", paper=(37000, 32000))
    min_frequency: int | None = option(
        None,
        "Least occurrences of two sub-words side by side to become one; a small corpus then has fewer entries than "
        "vocab_size.",
        COUNT,
        decides="data",
    )
    tokenizer_sample: int = option(
        1_000_000, "Pairs, from all over the training corpus, to train the tokenizer on.", COUNT, decides="data"
    )
    num_proc: int | None = option(
        None,
        "Processes that encode a large corpus; by default one a core.",
        Interval(minimum=1, maximum=1024),
        decides=None,
    )

    def __post_init__(self) -> None:
        check_values(self)
        if self.columns is not None and len(self.columns) != 2:
            raise ValueError(f"columns: name two, of the source and the target, not {len(self.columns)}")
        names = [name for name in MIXED if getattr(self, name) is None]
        refuse_unused(self, {f"{name}_ratio": f"give --{name}, or leave it out" for name in names})

    def with_languages(self, model: PreTrainedConfig | None = None) -> Self:
        """The arguments with the languages that they name, else the model's, else the corpora's.

        Raises:
            ValueError: As from `resolve_languages`.
        """
        names = ("source_language", "target_language")
        source, target = (getattr(self, name) or getattr(model, name, None) for name in names)
        source, target = resolve_languages(self.sources.values(), source, target)
        return replace(self, source_language=source, target_language=target)

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of the source and target language, as decided by `with_languages`."""
        return cast(tuple[str, str], (self.source_language, self.target_language))

    @property
    def tags(self) -> list[str]:
        """Tags of the target languages; empty with one direction."""
        return list(map(language_tag, self.languages)) if self.both_directions else []

    @property
    def sources(self) -> dict[str, list[str]]:
        """The corpora by split.

        Raises:
            ValueError: There is no training corpus.
        """
        if not self.train:
            raise ValueError("train: give a corpus to train on, such as `train: [train.en, train.de]`")
        return {split: getattr(self, split) for split in _PARTS if getattr(self, split)}

    @property
    def corpora(self) -> dict[str, Corpus]:
        """The corpora by split, with the languages decided by `with_languages`."""
        config, columns, streaming = self.dataset_config, self.columns, self.streaming
        return {
            split: Corpus(find_source(names), self.languages, _PARTS[split], config, columns, streaming)
            for split, names in self.sources.items()
        }

    @property
    def ratios(self) -> dict[str, float]:
        """For each corpus that is mixed in, its pairs in an epoch for each pair of `train`."""
        return {name: getattr(self, f"{name}_ratio") for name in MIXED if getattr(self, name)}
