"""Changed copies of pairs, from which a model learns to copy names and numbers, and to read careless text.

The changes are like OpusTrainer's modifiers (Bogoychev et al., 2023, https://arxiv.org/abs/2311.14838).
"""

import random
import re
from collections.abc import Sequence
from functools import partial

import numpy as np
import regex  # its \w has combining marks, which letters of Yoruba have even in NFC
from datasets import Dataset, concatenate_datasets

from ..model.languages_vaswani import cut_tag
from .copied_strings import KINDS, copied_strings, rewrite
from .corpora import evenly_spaced


# Weights. Copies come first almost always, because few pairs contain names or numbers. Of the rest, about a quarter are
# capitals.
_CHANGES = {"copies": 99, "frame": 3, "capitals": 4, "title case": 1, "final mark": 2, "quotes": 3, "typing errors": 2}

# Made strings: "W" is a made word, "N" a made name, "E" an emoji, and a digit the upper limit of a random digit there.
_MADE = {
    "URLs": ("https://www.W.com/W", "http://W.org", "www.W.net/W?W=99"),
    "e-mail addresses": ("W@W.com", "W.W@W.org", "W99@W.net"),
    "placeholders": ("%s", "%d", "%(W)s", "{9}", "{W}"),
    "emoji": ("E", "EE"),
    "numbers": ("23:59", "#99999", "99-9999", "+99 999 9999999"),
    "names": ("N", "N N"),
}
_EMOJI = (range(0x2600, 0x27C0), range(0x1F300, 0x1F650), range(0x1F600, 0x1F650), range(0x1F900, 0x1FA00))
_FRAMES = ("{0} {1}", "{1} {0}", "{1}: {0}", "{0} ({1})", "<b>{0}</b>", "<i>{0}</i>")

# A word that may be a name: not after an article, nor where another name would be elided, as in "d'Anna".
_ARTICLES = (
    r"(?<!\ba )(?<!\b(?:an|au|du|el|il|im|la|un|[cdjlmnst]e) )(?<!\beine )(?<!\beine[mnrs] )"
    r"(?<!\b(?:aux|das|de[lmnrs]|die|ein|ins|l[aeo]s|que|the|une|vom|zu[mr]) )"
)
_NAME = regex.compile(rf"(?<![\w'’-])(?i:{_ARTICLES})[^\W\d_]{{3,}}(?![\w'’-])")
_INSIDE = regex.compile(r"(?<=[\w,] )" + _NAME.pattern)  # a sentence, not at its start
_NAME_SAMPLE = 100_000  # pairs
_LONG_WORD = re.compile(r"[^\W\d_]{5,}")
_FIRST_LETTER = regex.compile(r"(?<![\w'’])\w")
_FINAL_MARK = re.compile(r"(?<=[^\s.!?]{2})\s?[.!?。！？।]\s*$")  # not of an abbreviation, such as "p.m."
_STRAIGHT = str.maketrans("’‘“”„", '\'\'"""')


def find_names(corpus: Dataset) -> list[str]:
    """Find words that are capitalised inside a sentence on both sides of a pair, and nowhere in lower case."""
    shared, ordinary = set[str](), set[str]()
    for pair in corpus.select(evenly_spaced(len(corpus), _NAME_SAMPLE))["translation"]:
        shared |= set.intersection(*(set(filter(str.istitle, _INSIDE.findall(text))) for text in pair.values()))
        ordinary.update(word for text in pair.values() for word in regex.findall(r"[^\W\d_]+", text) if word.islower())
    return sorted(name for name in shared if name.lower() not in ordinary)


def augment_corpus(
    corpus: Dataset, languages: Sequence[str], share: float, names: Sequence[str], num_proc: int | None = None
) -> Dataset:
    """Add a share of a corpus's pairs once more, each with one or two changes.

    Names, numbers, case, final marks and added strings change alike on both sides; quotation marks and typing errors in
    the source alone. The other direction has the same pairs. A pair with a blank side is added unchanged.

    Args:
        corpus: The pairs.
        languages: Codes of source and target.
        share: How many pairs to add, as a share of the corpus.
        names: Names that may replace each other, from `find_names`.
        num_proc: As in `Dataset.map`.

    Returns:
        The corpus, followed by `round(share * len(corpus))` changed copies.
    """
    if not (count := round(share * len(corpus))):
        return corpus
    chosen = np.random.default_rng(0).choice(len(corpus), count, replace=False)

    def change(row: dict[str, dict[str, str]], index: int) -> dict[str, dict[str, str]]:
        source, target = (row["translation"][each] for each in languages)
        changed = change_pair(source, target, names, random.Random(index))
        return {"translation": dict(zip(languages, changed, strict=True))}

    copies = corpus.select(np.sort(chosen)).map(change, with_indices=True, num_proc=num_proc, desc="Augmenting")
    return concatenate_datasets([corpus, copies])


def change_pair(source: str, target: str, names: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """Make the first one or two changes, in a random order, that apply to a pair; none if a side is blank.

    The tag of a language, with which a source may begin, stays.
    """
    tag, source = cut_tag(source)
    weights, left = list(_CHANGES.values()), rng.choice((1, 2))
    for kind in dict.fromkeys(rng.sample(list(_CHANGES), sum(weights), counts=weights)):
        if left and source.strip() and target.strip():
            changed = apply_change(kind, source, target, names, rng)
            left -= changed != (source, target)
            source, target = changed
    return tag + source, target


def apply_change(kind: str, source: str, target: str, names: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """Make one change; the pair is unchanged if it does not apply."""
    match kind:
        case "copies":
            return _replace_copies(source, target, names, rng)
        case "frame":
            frame, made = rng.choice(_FRAMES), _make(rng.choice(list(_MADE)), rng)
            return frame.format(source, made), frame.format(target, made)
        case "capitals" | "title case" if _has_case(rewrite(source, str, lambda *_: "")):
            in_case = str.upper if kind == "capitals" else partial(_FIRST_LETTER.sub, lambda match: match[0].upper())
            return rewrite(source, in_case), rewrite(target, in_case)
        case "final mark" if _FINAL_MARK.search(source) and _FINAL_MARK.search(target):
            return _FINAL_MARK.sub("", source), _FINAL_MARK.sub("", target)
        case "quotes":
            typographic = re.sub(r"(?<=\w)'(?=\w)", "’", re.sub(r'"([^"]+)"', r"“\1”", source))
            straight = source.translate(_STRAIGHT)
            return typographic if straight == source else straight, target
        case "typing errors":
            # One of ten words, but none that the target copies.
            words = [word for word in _LONG_WORD.finditer(source) if word[0] not in target and _has_case(word[0])]
            chosen = rng.sample(words, min(len(words), 1 + len(words) // 10))
            for start, end in sorted(map(re.Match.span, chosen), reverse=True):
                source = with_typing_error(source, rng.randrange(start + 1, end - 1), rng)
    return source, target


def _replace_copies(source: str, target: str, names: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """Replace names, numbers, addresses, placeholders and emoji that both sides have."""
    others = _other_names(source, target, names, rng)
    in_target = {_key(kind, match) for kind, match in copied_strings(target)}
    times = {_key(*copy): copy[1][0] for side in (source, target) for copy in copied_strings(side) if ":" in copy[1][0]}
    for kind, match in copied_strings(source):
        if (key := _key(kind, match)) and key in in_target:
            text = times.get(key, match[0])  # a time may be "14.30" on one side
            others[key] = _other_digits(text, rng) if kind == "numbers" else _make(kind, rng)

    def replace(kind: str, match: re.Match[str]) -> str:
        other = others.get(_key(kind, match), match[0])
        return re.sub(r"\d", "{}", match[0]).format(*re.sub(r"\D", "", other)) if kind == "numbers" else other

    rename = partial(_NAME.sub, lambda match: others.get(match[0], match[0]))
    return rewrite(source, rename, replace), rewrite(target, rename, replace)


def _other_names(source: str, target: str, names: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Another name, or another string, for each name that both sides have."""
    others: dict[str, str] = {}
    words = {text: _NAME.findall(text) for text in (source, target)}
    for name in words[source]:
        # Not if a side has another form of the name, such as "Toms".
        if all(0 < text.count(name) == words[text].count(name) for text in words) and name in names:
            one, other = rng.choice(names), rng.choice(names)
            made = one[: len(one) // 2 + 1] + other[len(other) // 2 :]
            others[name] = rng.choice((one, one, made, made, made, _make(rng.choice(KINDS[:3]), rng)))
    return others


def _key(kind: str, match: re.Match[str]) -> str:
    """A string, or a number's digits; empty for a tag, or a number within a word, such as "21st"."""
    if kind != "numbers":
        return "" if match[0].startswith("<") else match[0]
    is_in_word = _has_case(match.string[: match.start()][-1:] + match.string[match.end() :][:1])
    return "" if is_in_word else re.sub(r"\D", "", match[0])


def _other_digits(number: str, rng: random.Random) -> str:
    """The digits of another number that has the same plural and article in any language.

    The last digit stays, and so do a 1 before it, a single digit before a separator, and hours.
    """
    digits, first = re.sub(r"\D", "", number), len(re.split(r"\D", number)[0])
    kept, choice = first if first == 1 or ":" in number else 0, "2345" if ":" in number else "23456789"
    return digits[:kept] + re.sub(r"(?!1\d$)\d(?=\d)", lambda _: rng.choice(choice), digits[kept:])


def with_typing_error(text: str, index: int, rng: random.Random) -> str:
    """The text with the letter at an index swapped with the next, dropped or doubled."""
    this, after = text[index], text[index + 1]
    return text[:index] + rng.choice((after + this, after, this + this + after)) + text[index + 2 :]


def _make(kind: str, rng: random.Random) -> str:
    """A made string of a kind."""

    def fill(match: re.Match[str]) -> str:
        if match[0] in "NW":
            word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.choice((2, 3))))
            return word.title() if match[0] == "N" else word
        return chr(rng.choice(rng.choice(_EMOJI))) if match[0] == "E" else str(rng.randint(0, int(match[0])))

    return re.sub(r"[NWE\d]", fill, rng.choice(_MADE[kind]))


def _has_case(text: str) -> bool:
    """Whether nearly all letters of a text have two cases."""
    return 10 * sum(letter.lower() != letter.upper() for letter in text) > 9 * sum(map(str.isalpha, text))
