"""The written supplement: English and German sentences of daily life, from templates with slots.

We wrote it for this package; no sentence is from a corpus. `supplement.tsv` has a template a line, in English and
German: `[city]` and `[city2]` are different cities, and `[CITY]` is one in capitals. `supplement.json` has the words
of each kind of slot, as "Munich = München" where the languages differ. Words may have slots themselves; `###` is a
number of three digits.
"""

import json
import re
from functools import cache
from pathlib import Path
from random import Random

from .text_files import Pair


SPLIT_SIZES = {"train": 20_000, "validation": 200, "test": 200}

_SLOT = re.compile(r"\[[A-Za-z_]+\d?\]|#+")
_SHARED = 50  # kinds of fewer words, such as the days of the week, have the same words in all splits


def supplement(split: str) -> list[Pair]:
    """Distinct (English, German) pairs of a split in `SPLIT_SIZES`.

    No line of either language is in two splits. Validation and test have names and numbers that train lacks.
    """
    return list(_pairs()[split])


@cache
def templates() -> list[Pair]:
    """The (English, German) templates; the ones without a slot are sentences."""
    lines = Path(__file__).with_name("supplement.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("\t") for line in lines if line and not line.startswith("# "))
    return [(english, german) for english, _, german in pairs]


@cache
def words() -> dict[str, list[Pair]]:
    """The (English, German) words of each kind of slot."""
    kinds: dict[str, list[str]] = json.loads(Path(__file__).with_name("supplement.json").read_text(encoding="utf-8"))
    pairs = {kind: [word.partition(" = ") for word in words] for kind, words in kinds.items()}
    return {kind: [(english, german or english) for english, _, german in pairs[kind]] for kind in kinds}


@cache
def _pairs() -> dict[str, list[Pair]]:
    splits: dict[str, list[Pair]] = {}
    for split, size in SPLIT_SIZES.items():
        fillers = _Fillers(split)
        earlier = {line for pairs in splits.values() for pair in pairs for line in pair}
        pairs: dict[Pair, None] = {}  # a set in a stable order
        while len(pairs) < size:
            pair = fillers.fill(fillers.random.choice(templates()))
            if earlier.isdisjoint(pair):
                pairs[pair] = None
        splits[split] = list(pairs)
    return splits


class _Fillers:
    """Random fillers of one split; each long list of words, and the numbers, are divided between the splits."""

    def __init__(self, split: str) -> None:
        self.split, self.random = split, Random(split)

    def fill(self, template: Pair) -> Pair:
        """Fill the slots of a template, the same ones on both sides."""
        fillers: dict[str, Pair] = {}
        for slot in _SLOT.findall(template[0]):
            while slot not in fillers:
                filler = self._draw(slot.strip("[]0123456789"))
                if filler not in fillers.values():
                    fillers[slot] = filler
        english = _SLOT.sub(lambda slot: fillers[slot[0]][0], template[0])
        german = _SLOT.sub(lambda slot: fillers[slot[0]][1], template[1])
        return english.replace(".m..", ".m."), german  # a sentence that ends in "p.m." has one period

    def _draw(self, kind: str) -> Pair:
        if kind.isupper():
            english, german = self._draw(kind.lower())
            return english.upper(), german.upper()
        if kind.startswith("#"):
            number = str(self._number(10 ** (len(kind) - 1), 10 ** len(kind)))
            return number, number
        choices = words()[kind]
        is_divided = len(choices) >= _SHARED
        return self.fill(choices[self._number(0, len(choices))] if is_divided else self.random.choice(choices))

    def _number(self, start: int, end: int) -> int:
        """A number of this split from `start` to `end` - 1: its remainder by 11 decides the split."""
        while True:
            number = self.random.randrange(start, end)
            if {9: "validation", 10: "test"}.get(number % 11, "train") == self.split:
                return number
