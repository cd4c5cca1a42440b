"""Options of the corpora of a training: of translation (5.1), and of parsing (6.3)."""

from dataclasses import dataclass
from typing import Literal, cast

from .arguments import COUNT, SHARE, Interval, option, refuse_unused


# Corpora whose pairs are drawn anew for each epoch, all corpora that are cleaned and trained on, and all splits.
MIXED = ("replay", "synthetic")
TRAINED_ON = ("train", *MIXED)
# Options of a vocabulary that is learned.
VOCABULARY = ("tokenizer_model", "vocab_size", "min_frequency", "split_digits", "tokenizer_sample")
_SPLITS = (*TRAINED_ON, "validation", "test", "replay_test")
_RATIO = Interval(above=0, maximum=1000)


@dataclass(frozen=True)
class CorpusOptions:
    """Parallel corpora and their vocabulary (5.1)."""

    option_group = "data"

    source_language: str | None = option(
        None, "Code of the source language; by default the model's or the first file's suffix.", decides="data"
    )
    target_language: str | None = option(
        None, "Code of the target language; by default as source_language.", decides="data"
    )
    both_directions: bool = option(
        False,
        "Translate from target to source as well: each source begins with the tag of its target, as <2de>.",
        decides="data",
    )
    train: list[str] | None = option(
        None,
        "Two aligned text files (plain, .gz, .bz2, .xz, .zst); or tables: JSON lines, Parquet, CSV, TSV, TMX, "
        "directories of save_to_disk, or a quoted pattern, such as 'part-*.parquet'; or a dataset of the Hub; or "
        "'phrasebook' or 'supplement', which are embedded.",
        decides="inputs",
        is_first=True,
    )
    validation: list[str] | None = option(None, "As train.", decides="inputs", is_first=True)
    test: list[str] | None = option(None, "As train.", decides="inputs", is_first=True)
    replay: list[str] | None = option(
        None, "As train: a corpus mixed in, such as the parent model's, so that it is not forgotten.", decides="inputs"
    )
    replay_ratio: float = option(
        1.0, "Pairs of replay, drawn anew in each epoch, for each pair of train.", _RATIO, decides="weights"
    )
    synthetic: list[str] | None = option(
        None,
        "As train: a corpus mixed in. One side is machine-translated, as by translate.py. With both_directions, these "
        "pairs are not reversed.",
        decides="inputs",
    )
    synthetic_ratio: float = option(1.0, "Synthetic pairs per training pair in each epoch.", _RATIO, decides="weights")
    replay_test: list[str] | None = option(
        None, "As test: a second test set, such as the parent model's, to see what it forgets.", decides="inputs"
    )
    columns: list[str] | None = option(
        None,
        "Columns of source and target in tables, by name or number from 1; in TMX, languages; by default their codes.",
        decides="data",
    )
    dataset_config: str | None = option(None, "Configuration of a Hub dataset, as 'de-en'.", decides="inputs")
    augment: float = option(
        0.0,
        "Share of the pairs of train that are added once more, with changes: other names and numbers, capitals, no "
        "final mark, added URLs and emoji on both sides; other quotation marks and typing errors in the source.",
        SHARE,
        decides="data",
    )
    tokenizer: str | None = option(
        None, "A saved tokenizer; by default one is trained on the training corpus.", decides="inputs"
    )
    tokenizer_model: Literal["bpe", "wordpiece"] = option("bpe", "Kind of vocabulary.", decides="data")
    vocab_size: int = option(37000, "Entries of the shared vocabulary.", COUNT, decides="data", paper=(37000, 32000))
    min_frequency: int | None = option(
        None, "Least frequency of merged sub-words; may make the vocabulary smaller.", COUNT, decides="data"
    )
    split_digits: bool = option(False, "Make each digit a token, to copy any number.", decides="data")
    tokenizer_sample: int = option(
        1_000_000, "Pairs, from all over the training corpus, to train the tokenizer on.", COUNT, decides="data"
    )


@dataclass(frozen=True)
class PreparationOptions:
    """Cleaning and preparation of the corpora, and their description in the model card."""

    option_group = "data"

    max_length: int = option(256, "Longest sentence trained on, in sub-words.", COUNT, decides="data")
    max_ratio: float = option(
        5.0, "Longest side over shortest side of a pair trained on.", Interval(minimum=1), decides="data"
    )
    num_proc: int | None = option(
        None, "Processes that encode a large corpus; by default one a core.", COUNT, decides=None
    )
    prepared: str | None = option(
        None,
        "Directory of the prepared corpora, for any number of runs; created if missing, see prepare_data.py. By "
        "default they are kept in the cache of datasets.",
        decides=None,
    )
    license: str | None = option(None, "License of the model, for its card, such as cc-by-4.0.", decides=None)
    attribution: str | None = option(None, "Attribution of the corpora, as text for the card.", decides=None)
    domain: str | None = option(None, "Kind of text, for the card, such as image captions.", decides=None)
    datasets: list[str] | None = option(
        None, "Hub ids of the corpora, for the card; by default those that were loaded.", decides=None
    )


@dataclass(frozen=True)
class DataArguments(PreparationOptions, CorpusOptions):
    """Data of a training for translation; the options of the last base come first."""

    def __post_init__(self) -> None:
        if self.columns is not None and len(self.columns) != 2:
            raise ValueError(f"columns: name two, of the source and the target, not {len(self.columns)}")
        names = [name for name in MIXED if getattr(self, name) is None]
        refuse_unused(self, {f"{name}_ratio": f"give --{name}, or leave it out" for name in names})

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of the source and target language, as decided by `preparation.with_languages`."""
        return cast(tuple[str, str], (self.source_language, self.target_language))

    @property
    def sources(self) -> dict[str, list[str]]:
        """The corpora by split.

        Raises:
            ValueError: There is no training corpus.
        """
        if not self.train:
            raise ValueError("train: give a corpus to train on, such as `train: [train.en, train.de]`")
        return {split: getattr(self, split) for split in _SPLITS if getattr(self, split)}

    @property
    def ratios(self) -> dict[str, float]:
        """For each corpus that is mixed in, its pairs in an epoch for each pair of `train`."""
        return {name: getattr(self, f"{name}_ratio") for name in MIXED if getattr(self, name)}


@dataclass(frozen=True)
class TreebankOptions:
    """Treebanks, their preparation and their vocabulary."""

    option_group = "data"

    train: list[str] | None = option(
        None,
        "Files of gold trees (plain, .gz, .bz2, .xz, .zst), or the embedded 'demo'.",
        decides="inputs",
        is_first=True,
    )
    silver: list[str] | None = option(None, "Files of a parser's own trees, to train on as well.", decides="inputs")
    gold_copies: int = option(
        1, "How often the gold trees count in an epoch, beside the silver ones.", COUNT, decides="inputs"
    )
    validation: list[str] | None = option(None, "As train.", decides="inputs", is_first=True)
    test: list[str] | None = option(None, "As train.", decides="inputs", is_first=True)
    source_language: str = option("en", "Code of the language of the words.", decides="data")
    vocab_size: int = option(16_000, "Entries of the vocabulary, labels included.", COUNT, decides="data")
    keeps_tags: bool = option(
        True, "Write words as their tags; otherwise as XX, as Vinyals et al. (2015) did.", decides="inputs"
    )
