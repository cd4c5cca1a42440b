"""Pathologies: translations that are blank, copied, in the source's language, repetitive or truncated."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.languages_vaswani import writes_spaces


_KINDS = ("blank", "copied", "source language", "repeated", "truncated")

_NATS = 3.0  # evidence for the source's language that one line in a thousand of people's translations has
_DEVIATIONS, _SHARE = 3.0, 0.6  # a truncated line: standard deviations below the expected length, and its share at most

# Digits, with or without separators between groups: "1.000", "1 000", "1,00,000". `int` refuses thousands of digits.
_NUMBER = re.compile(r"\d{1,3}(?:[.,'’ \u00a0\u2009\u202f]\d{2,3})*[.,'’ \u00a0\u2009\u202f]\d{3}(?!\d)|\d{1,99}")
# Words for parts of numbers above 24 and of times, in English, German and French, but not "per cent".
_NUMBER_WORDS = re.compile(
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)|(?:zwan|vier|fünf|sech|sieb|acht|neun)zig|dreißig|"
    r"vingt|trente|quarante|cinquante|soixante|septante|nonante|(?<!per )(?<!pour )\bcents?\b|\bmille\b|"
    r"hundred|hundert|thousand|tausend|quart|viertel",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Pathologies:
    """Lines with pathological translations; a line counts for the first kind that applies.

    Attributes:
        sentences: Number of lines whose source is not blank.
        lines: Numbers of the lines, from 1, by kind: "blank"; "copied", equal to the source except for case and
            punctuation; "source language", written in it; "repeated", with a repeated phrase that the source lacks;
            "truncated", much shorter than the source predicts.
    """

    sentences: int
    lines: dict[str, list[int]]

    @property
    def shares(self) -> dict[str, float]:
        """Percentage of the sentences by kind."""
        return {kind: 100 * len(lines) / max(self.sentences, 1) for kind, lines in self.lines.items()}


def find_pathologies(
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[Sequence[str]],
    languages: tuple[str, str],
) -> Pathologies:
    """Find the pathologies of translations; a translation equal to one of its references has none."""
    detector = PathologyDetector(sources, [texts[0] for texts in references], languages)
    lines: dict[str, list[int]] = {kind: [] for kind in _KINDS}
    for row, (source, translation) in enumerate(zip(sources, translations, strict=True)):
        kind = detector.kind(source, translation)
        if kind and _words(translation) not in map(_words, references[row]):
            lines[kind].append(row + 1)
    return Pathologies(sum(1 for source in sources if source.strip()), lines)


class PathologyDetector:
    """Detects pathologies after learning the two languages from sentence pairs; it can then examine other pairs.

    Trigrams of characters tell the languages apart. Lengths differ from the median ratio with a variance proportional
    to the source's length (Gale and Church, 1993).

    Args:
        sources: Source sentences.
        targets: Their translations, most of them sound.
        languages: Codes of the source and the target language.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[str], languages: tuple[str, str]):
        # A repeated phrase has at least as many words, or characters where words are not separated.
        self.source_unit, self.unit = (1 if writes_spaces(language) else 4 for language in languages)
        ours, theirs = (Counter(gram for line in lines for gram in _trigrams(line)) for lines in (sources, targets))
        kinds = len(ours | theirs)
        size = math.log((theirs.total() + kinds) / (ours.total() + kinds))
        self.evidence = {gram: math.log((ours[gram] + 1) / (theirs[gram] + 1)) + size for gram in ours | theirs}
        lengths = np.array([[len(text) + 1 for text in pair] for pair in zip(sources, targets, strict=True)])
        self.ratio = float(np.median(lengths[:, 1] / lengths[:, 0]))
        distances = (lengths[:, 1] - self.ratio * lengths[:, 0]) / np.sqrt(lengths[:, 0])
        self.deviation = 1.4826 * float(np.median(np.abs(distances)))  # a normal distribution's, despite outliers
        self.usual = {phrase for target in targets for phrase in _repetitions(target, self.unit)}

    def kind(self, source: str, translation: str) -> str | None:
        """The pathology of a translation; None without one, and for a blank source."""
        expected = self.ratio * (len(source) + 1)
        shortest = expected - _DEVIATIONS * self.deviation * math.sqrt(len(source) + 1)
        if not source.strip():
            return None
        if not translation.strip():
            return "blank"
        if _words(source) == _words(translation):
            return "copied"
        if sum(self.evidence.get(gram, 0.0) for gram in set(_trigrams(translation))) > _NATS:
            return "source language"
        repeated = _repetitions(translation, self.unit)
        # Half as long in the source, because translations use different words.
        if not self.usual.issuperset(repeated) and len(repeated) > len(_repetitions(source, self.source_unit, apart=3)):
            return "repeated"
        return "truncated" if len(translation) + 1 < min(shortest, _SHARE * expected) else None


def numbers_agree(source: str, translation: str) -> bool:
    """Whether source and translation have the same numbers in digits, of any script and with any separators.

    Hours of 12 and of 24 agree, and so do years with and without their century. A number that one side lacks agrees if
    that side may spell it: up to 24, with a single digit before zeros, or beside a word such as "hundred". If each side
    has a number that the other lacks, they differ.
    """
    lost, added = _missing(source, translation), _missing(translation, source)
    return not (lost and added) and _may_spell(lost, translation) and _may_spell(added, source)


def _missing(text: str, other: str) -> set[int]:
    """The numbers of a text that the other text lacks."""
    return {number for number in _numbers(text) if not any(_is_same(number, each) for each in _numbers(other))}


def _numbers(text: str) -> set[int]:
    return {int(re.sub(r"\D", "", number)) for number in _NUMBER.findall(text)}


def _is_same(first: int, second: int) -> bool:
    low, high = sorted((first, second))
    return low == high or (high <= 24 and (high - low) % 12 == 0) or (1000 <= high < 2100 and low == high % 100)


def _may_spell(numbers: set[int], text: str) -> bool:
    is_short = all(number <= 24 or len(str(number).rstrip("0")) == 1 for number in numbers)
    has_numerals = any(character.isalpha() and character.isnumeric() for character in text)  # Chinese
    return is_short or has_numerals or _NUMBER_WORDS.search(text) is not None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _trigrams(text: str) -> Iterator[str]:
    padded = f" {' '.join(text.casefold().split())} "
    return (padded[start : start + 3] for start in range(len(padded) - 2))


def _repetitions(text: str, unit: int, apart: int = 6) -> list[tuple[str, ...]]:
    """Phrases repeated at once, of fewer than `apart` units, or anywhere, of `apart` units; one per repetition."""
    tokens = re.findall(r"\w+|[^\w\s]" if unit == 1 else r"\S", text.casefold())
    phrases = [
        tuple(phrase)
        for size in range(unit, apart * unit)
        for start in range(len(tokens) - 2 * size + 1)
        if (phrase := tokens[start : start + size]) == tokens[start + size : start + 2 * size]
        and any(map(str.isalnum, phrase))
    ]
    counts = Counter(zip(*(tokens[start:] for start in range(apart * unit)), strict=False))
    return phrases + [phrase for phrase, count in counts.items() for _ in range(count - 1)]
