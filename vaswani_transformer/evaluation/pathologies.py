"""Pathologies: blank, copied, untranslated, repetitive or truncated translations, and numbers that differ."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import regex  # its \w has combining marks, without which Hindi and Tamil have no words

from ..model.languages_vaswani import cut_tag, is_same_language, writes_spaces


_KINDS = ("blank", "copied", "source language", "repeated", "truncated", "numbers differ")

_NATS = 3.0  # log-odds of the source language that 1 in 1,000 human translations exceeds
_DEVIATIONS, _SHARE = 3.0, 0.6  # a truncated line: standard deviations below the expected length, and its share at most

# Digits, with or without separators between groups: "1.000", "1 000", "1,00,000". `int` refuses thousands of digits.
_NUMBER = regex.compile(r"\d{1,3}(?:[.,٬'’\s]\d{2,3})*[.,٬'’\s]\d{3}(?!\d)|\d{1,99}")
# Beginnings of words for 1 to 12 and of the months, and of 13 to 24 as hours: twelve patterns, divided by spaces.
_SMALL_NUMBERS = {
    "en": r"one|first|january two|second|both|twice|couple|february three|third|march four|april five|fifth|may\b "
    "six|june seven|july eigh|august nin|septem ten|octo eleven|novem twel|noon|decem",
    "de": r"eins|erst|januar zwei|beid|paar|februar drei|dritt|märz vier|april fünf|mai\b sech|juni sieb|juli "
    "acht|august neun|septem zehn|oktober elf|novem zwölf|mittag|mitternacht|dezem",
    "fr": r"une|premi|janvier deux|second|couple|février trois|mars\b quatr|avril cinq|mai\b six|juin\b sept|juillet "
    "huit|août neuf|neuv|septem dix|octo onz|novem douz|midi|minuit|décem",
}
# Numbers before units that other languages lack: ten thousand, a hundred million; a hundred thousand, ten million.
_OTHER_UNITS = regex.compile(
    r"(?<!\d)\d[\d.,]*+\s?(?:[百千]?[万萬億亿]|लाख|करो|लक्ष|লক্ষ|লাখ|কোটি|lakh|crore)", regex.IGNORECASE
)
# Parts of larger numbers and of times; not "pour cent".
_NUMBER_PARTS = {
    "en": "(?:twen|thir|for|four|fif|six|seven|eigh|nine)t(?:een|y|ie)|hundred|thousand|illion|dozen|half|quarter",
    "de": r"(?:zwan|drei|vier|fünf|sech|sieb|acht|neun)[zß]ig|\Bzehn|hundert|tausend|illi|dutzend|halb|viertel",
    "fr": "treiz|quatorz|quinz|seiz|dix-|vingt|trente|(?:quar|cinqu|soix|sept|non)ant|(?<!pour )cent|mill|quart|demi",
}


@dataclass(frozen=True)
class Pathologies:
    """Lines with pathological translations; a line counts for the first kind that applies.

    Attributes:
        sentences: Number of lines whose source is not blank.
        lines: Numbers of the lines, from 1, by kind: "blank"; "copied", equal to the source except for case and
            punctuation; "source language", written in it; "repeated", with a repeated phrase that the source lacks;
            "truncated", much shorter than the source predicts; "numbers differ", by `numbers_agree`.
        knows_lengths: Whether sources predict the lengths of references well enough to notice what is truncated.
    """

    sentences: int
    lines: dict[str, list[int]]
    knows_lengths: bool = True

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
    """Find the pathologies of translations; a translation equal to one of its references has none.

    Text is compared in NFC. Numbers may also match a reference.
    """
    sources, translations = _composed(sources), _composed(translations)
    references = [_composed(texts) for texts in references]
    detector = PathologyDetector(sources, [texts[0] for texts in references], languages)
    lines: dict[str, list[int]] = {kind: [] for kind in _KINDS}
    for index, (source, translation) in enumerate(zip(sources, translations, strict=True)):
        kind = detector.kind(source, translation)
        if kind is None or _words(translation) in map(_words, references[index]):
            continue
        if kind == "numbers differ" and any(
            numbers_agree(text, translation, (languages[1], languages[1])) for text in references[index]
        ):
            continue
        lines[kind].append(index + 1)
    return Pathologies(sum(1 for source in sources if source.strip()), lines, detector.knows_lengths)


class PathologyDetector:
    """Detects pathologies after learning the two languages from sentence pairs; it can then examine other pairs.

    Trigrams of characters tell the languages apart. Lengths differ from the median ratio with a variance proportional
    to the source's length (Gale and Church, 1993). They are not known (`knows_lengths`) if they vary so much that
    even a blank translation of a source of median length would not be too short.

    Args:
        sources: Source sentences.
        targets: Their translations, most of them sound.
        languages: Codes of the source and the target language.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[str], languages: tuple[str, str]):
        self.languages = languages
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
        typical = float(np.median(lengths[:, 0]))
        self.knows_lengths = self._shortest(typical) > 0
        self.usual = {phrase for target in targets for phrase in _repetitions(target, self.unit)}
        # Hindi, Bengali and Indonesian double words by grammar.
        self.doubles_words = sum(len(phrase) == 1 for phrase in self.usual) > 2 + len(targets) / 250

    def kind(self, source: str, translation: str) -> str | None:
        """The pathology of a translation; None without one, and for a blank source."""
        length = len(source) + 1
        if not source.strip():
            return None
        if not translation.strip():
            return "blank"
        if _words(source) == _words(translation):
            return "copied"
        if sum(self.evidence.get(gram, 0.0) for gram in set(_trigrams(translation))) > _NATS:
            return "source language"
        repeated = _repetitions(translation, self.unit)
        if self.doubles_words:
            repeated = [phrase for phrase in repeated if len(phrase) > 1 or repeated.count(phrase) > 1]
        # Half as long in the source, because translations use different words.
        if not self.usual.issuperset(repeated) and len(repeated) > len(_repetitions(source, self.source_unit, apart=3)):
            return "repeated"
        if len(translation) + 1 < min(self._shortest(length), _SHARE * self.ratio * length):
            return "truncated"
        return None if numbers_agree(source, translation, self.languages) else "numbers differ"

    def _shortest(self, length: float) -> float:
        """The length of the shortest sound translation of a source."""
        return self.ratio * length - _DEVIATIONS * self.deviation * math.sqrt(length)


def numbers_agree(source: str, translation: str, languages: tuple[str, str]) -> bool:
    """Whether a translation has the numbers of its source, in digits of any script and with any separators.

    Hours of 12 and of 24 agree, and so do years with and without their century. If each side has a number that the
    other lacks, they differ. If one side lacks a number, they agree where words or Roman numerals may spell it.
    Words of English, German and French are known; in other languages, one up to 24 or of one digit before zeros agrees.
    Numbers before units that other languages lack, as in "25万" and "2.5 crore", are not compared.

    Args:
        source: The source sentence.
        translation: Its translation.
        languages: Codes of the source and the target language.
    """
    source = cut_tag(source)[1]  # "<2de>" has no number
    plain_source, plain_translation = (_OTHER_UNITS.sub("", text) for text in (source, translation))
    lost = set() if plain_translation != translation else _missing(plain_source, translation, languages[1])
    added = set() if plain_source != source else _missing(plain_translation, source, languages[0])
    if lost and added:
        return False
    return _may_spell(translation, lost, languages[1]) and _may_spell(source, added, languages[0])


def _missing(text: str, other: str, language: str) -> set[int]:
    """The numbers of a text that the other text lacks, in digits and as words for 1 to 12."""
    others = _numbers(other)
    words = (_in_language(_SMALL_NUMBERS, language) or "").split()
    others |= {index for index, word in enumerate(words, 1) if regex.search(rf"\b(?:{word})", other, regex.IGNORECASE)}
    return {number for number in _numbers(text) if not any(_is_same(number, each) for each in others)}


def _numbers(text: str) -> set[int]:
    return {int(regex.sub(r"\D", "", number)) for number in _NUMBER.findall(text)}


def _is_same(first: int, second: int) -> bool:
    low, high = sorted((first, second))
    return low == high or (high <= 24 and (high - low) % 12 == 0) or (1000 <= high < 2100 and low == high % 100)


def _may_spell(text: str, numbers: set[int], language: str) -> bool:
    """Whether words of a text may stand for numbers; 0 and 1 are everywhere, as in "a" and "half"."""
    if numbers <= {0, 1} or regex.search(r"\b[IVX]{2,}", text):
        return True
    parts = _in_language(_NUMBER_PARTS, language)
    if parts is not None:
        return regex.search(parts, text, regex.IGNORECASE) is not None
    has_numerals = any(character.isalpha() and character.isnumeric() for character in text)  # Chinese
    return has_numerals or all(number <= 24 or len(str(number).rstrip("0")) == 1 for number in numbers)


def _in_language(table: dict[str, str], language: str) -> str | None:
    return next((words for code, words in table.items() if is_same_language(code, language)), None)


def _composed(texts: Sequence[str]) -> list[str]:
    return [unicodedata.normalize("NFC", text) for text in texts]


def _words(text: str) -> list[str]:
    return regex.findall(r"\w+", text.casefold())


def _trigrams(text: str) -> Iterator[str]:
    padded = f" {' '.join(text.casefold().split())} "
    return (padded[start : start + 3] for start in range(len(padded) - 2))


def _repetitions(text: str, unit: int, apart: int = 6) -> list[tuple[str, ...]]:
    """Repeated phrases, one entry a repetition.

    Phrases shorter than `apart` units count only if adjacent, phrases of `apart` units anywhere in the text.
    """
    tokens = regex.findall(r"\w+|[^\w\s]" if unit == 1 else r"\S", text.casefold())
    phrases = [
        tuple(phrase)
        for size in range(unit, apart * unit)
        for start in range(len(tokens) - 2 * size + 1)
        if (phrase := tokens[start : start + size]) == tokens[start + size : start + 2 * size]
        and any(regex.match(r"\w", token) for token in phrase)
    ]
    counts = Counter(zip(*(tokens[start:] for start in range(apart * unit)), strict=False))
    return phrases + [phrase for phrase, count in counts.items() for _ in range(count - 1)]
