"""Robustness: scores under small changes of the source, and how many strings to copy survive translation."""

import operator
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from ..data.augmentation import with_typing_error
from ..model.languages_vaswani import cut_tag
from .pathologies import numbers_agree
from .scores import chrf_score, sacrebleu_score


_SEED = 1  # of the choice of lines and of all changes
_FINAL = ".!?…。！？।॥።؟۔"
_WORD = r"[^\W\d_]{%d,}"  # letters, at least so many


@dataclass(frozen=True)
class ChangedLines:
    """Scores of lines with a changed source, and of the same lines unchanged.

    Attributes:
        lines: Number of lines.
        plain_bleu, plain_chrf: sacreBLEU and chrF2 of the unchanged lines.
        bleu, chrf: sacreBLEU and chrF2 of the changed lines.
        same: Number of changed lines with the same translation as the unchanged line.
    """

    lines: int
    plain_bleu: float
    bleu: float
    plain_chrf: float
    chrf: float
    same: int


@dataclass(frozen=True)
class CopiedLines:
    """Number of lines with a string to copy, and of those whose translation has it."""

    lines: int
    copied: int


@dataclass(frozen=True)
class Robustness:
    """Scores by the name of the change of the source, and copied lines by the kind of the strings."""

    changes: dict[str, ChangedLines]
    strings: dict[str, CopiedLines]


@dataclass(frozen=True)
class _Change:
    """A change of a source line; `ignore` removes its traces from translations and references."""

    apply: Callable[[str, Random], str]
    ignore: Callable[[str], str] = lambda text: text


def _inside_words(mark: str, shortest: int) -> _Change:
    def divided(word: re.Match[str]) -> str:
        middle = len(word[0]) // 2
        return word[0][:middle] + mark + word[0][middle:]

    return _Change(lambda text, _: re.sub(_WORD % shortest, divided, text))


def _mistyped(text: str, random: Random) -> str:
    """The text with a letter swapped with the next, dropped or doubled in one word of ten, and at least in one."""
    words = [word.span() for word in re.finditer(_WORD % 4, text)]
    for start, end in sorted(random.sample(words, min(len(words), 1 + len(text.split()) // 10)), reverse=True):
        text = with_typing_error(text, random.randrange(start, end - 1), random)
    return text


# The first eleven are invisible.
_CHANGES = {
    "two spaces for one": _Change(lambda text, _: text.replace(" ", "  ")),
    "no-break spaces": _Change(lambda text, _: text.replace(" ", "\u00a0")),
    "a tab": _Change(lambda text, _: text.replace(" ", "\t", 1)),
    "an ideographic space": _Change(lambda text, _: text.replace(" ", "\u3000", 1)),
    "a line separator": _Change(lambda text, _: text.replace(" ", "\u2028", 1)),
    "soft hyphens in long words": _inside_words("\u00ad", 8),
    "zero-width spaces in words": _inside_words("\u200b", 4),
    "word joiners in words": _inside_words("\u2060", 4),
    "a byte order mark": _Change(lambda text, _: "\ufeff" + text),
    "a left-to-right mark": _Change(lambda text, _: "\u200e" + text),
    "decomposed letters (NFD)": _Change(lambda text, _: unicodedata.normalize("NFD", text)),
    "all capitals": _Change(lambda text, _: text.upper(), str.lower),
    "lower case": _Change(lambda text, _: text.lower(), str.lower),
    "<b>...</b> around": _Change(lambda text, _: f"<b>{text}</b>", lambda text: re.sub("</?b>", "", text).strip()),
    "’ for '": _Change(lambda text, _: text.replace("'", "’"), lambda text: text.replace("’", "'")),
    "no final mark": _Change(lambda text, _: text.rstrip(_FINAL), lambda text: text.rstrip(_FINAL)),
    "typing errors": _Change(_mistyped),
}

_NUMBERS = ("numbers of the test set", "numbers")  # kinds of strings that a translation may write in another way
# Strings to put into lines, with "#" for any digit.
_STRINGS = {
    "numbers": ("2##,##", "1#.##", "1,2##.50", "1#:4#", "19##", "20##", "4#", "7##", "2####", "3#.1#.20##"),
    "URLs": ("https://www.example.org/page-##?id=###", "www.example.com", "http://news.example.net/a/b_##.html"),
    "e-mail addresses": ("anna.b##@example.org", "info@example.com", "jobs-##@mail.example.co.uk"),
    "placeholders": ("%s", "%d", "{0}", "{name}", "%(count)d", "<b>Kadomi</b>"),
    "emoji": ("😀", "🎉", "🚀", "❤️", "👍🏽", "🇪🇺", "👩‍🔬"),
    "names": ("Seattle", "Bergström", "Nguyen", "Okafor", "Kowalski", "Harrogate", "Yamada", "Petrenko", "Fika"),
}


def _with_string(kind: str, source: str, reference: str, random: Random) -> tuple[str, str]:
    """A source with a string, and the string.

    A name replaces one that the reference has too; without any, the source stays. Other strings stand at the end.
    """
    string = re.sub("#", lambda _: str(random.randrange(10)), random.choice(_STRINGS[kind]))
    if kind == "names":
        words, others = (re.findall(rf"\b{_WORD % 3}\b", text) for text in (source, reference))
        names = [word for word in words if word.istitle() and word in others]
        return re.sub(rf"\b{names[0]}\b", string, source) if names else source, string
    if kind == "emoji":
        return f"{source} {string}", string
    body = source.rstrip(_FINAL)
    return body + random.choice((f": {string}", f" ({string})")) + source[len(body) :], string


def robustness(
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    languages: tuple[str, str],
    translate: Callable[[list[str]], list[str]],
    lines: int = 200,
) -> Robustness:
    """Measure how small changes of the sources affect translations, and how many strings to copy they preserve.

    A change is measured on lines that it alters; one that alters none, such as capitals in Chinese, is left out. The
    scores ignore what the change itself explains: case, "<b>", the form of apostrophes, or the final mark.

    Args:
        sources: Lines of a test set.
        references: One or several for each line, the same number for all.
        languages: Codes of the source and the target language.
        translate: Translates distinct lines; called once.
        lines: Number of lines for each change and each kind of string, fewer if the test set has fewer.
    """
    order = [index for index, source in enumerate(sources) if source.strip()]
    Random(_SEED).shuffle(order)
    changed: dict[str, list[tuple[int, str]]] = {}
    for name, change in _CHANGES.items():
        random = Random(f"{_SEED} {name}")
        tagged = ((index, *cut_tag(sources[index])) for index in order)
        texts = ((index, tag + change.apply(text, random)) for index, tag, text in tagged)
        changed[name] = [*islice((each for each in texts if each[1].strip() and each[1] != sources[each[0]]), lines)]
    numbers = ((sources[index], "") for index in order if any(map(str.isdigit, cut_tag(sources[index])[1])))
    to_copy = {_NUMBERS[0]: [*islice(numbers, lines)]}
    for kind in _STRINGS:
        random = Random(f"{_SEED} {kind}")
        made = (_with_string(kind, sources[index], references[index][0], random) for index in order)
        to_copy[kind] = [*islice(((text, string) for text, string in made if string in text), lines)]

    pairs = (pair for rows in changed.values() for index, text in rows for pair in (sources[index], text))
    distinct = [*dict.fromkeys([*pairs, *(text for rows in to_copy.values() for text, _ in rows)])]
    translations = dict(zip(distinct, translate(distinct), strict=True))

    def compare(rows: list[tuple[int, str]], ignore: Callable[[str], str]) -> ChangedLines:
        expected = [[ignore(text) for text in references[index]] for index, _ in rows]
        plain = [ignore(translations[sources[index]]) for index, _ in rows]
        after = [ignore(translations[text]) for _, text in rows]
        plain_bleu, bleu = (sacrebleu_score(side, expected, languages[1]).score for side in (plain, after))
        plain_chrf, chrf = (chrf_score(side, expected).score for side in (plain, after))
        return ChangedLines(len(rows), plain_bleu, bleu, plain_chrf, chrf, sum(map(operator.eq, plain, after)))

    def has_copied(kind: str, text: str, string: str) -> bool:
        translation = translations[text]
        return numbers_agree(text, translation, languages) if kind in _NUMBERS else string in translation

    copied = {kind: sum(has_copied(kind, *each) for each in rows) for kind, rows in to_copy.items()}
    return Robustness(
        {name: compare(rows, _CHANGES[name].ignore) for name, rows in changed.items() if rows},
        {kind: CopiedLines(len(rows), copied[kind]) for kind, rows in to_copy.items() if rows},
    )
