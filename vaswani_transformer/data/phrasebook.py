"""The embedded corpus: English and German sentences of a small grammar, for demonstrations and tests.

The German is a function of the English. No training sentence combines the adjective or verb with the noun of a held-out
combination, such as "small" and "dog"; each validation and test sentence does.

`phrasebook.tsv.bz2` has the pairs of the three splits one after another. The generator that wrote them is
`vaswani_transformer/data/phrasebook/` in commit d5f3796.
"""

import bz2
from functools import cache
from pathlib import Path

from .text_files import Pair


SPLIT_SIZES = {"train": 20_000, "validation": 500, "test": 500}


def phrasebook(split: str) -> list[Pair]:
    """Distinct (English, German) pairs of a split in `SPLIT_SIZES`."""
    splits = list(SPLIT_SIZES)
    start = sum(SPLIT_SIZES[earlier] for earlier in splits[: splits.index(split)])
    return list(_pairs()[start : start + SPLIT_SIZES[split]])


@cache
def _pairs() -> tuple[Pair, ...]:
    text = bz2.decompress(Path(__file__).with_name("phrasebook.tsv.bz2").read_bytes()).decode("utf-8")
    return tuple((english, german) for english, _, german in (line.partition("\t") for line in text.splitlines()))
