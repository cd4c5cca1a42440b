"""Strings that a translation copies from its source: addresses, placeholders, emoji and numbers."""

import re
from collections.abc import Callable, Iterator

import regex

from ..model.languages_vaswani import E_MAIL, PLACEHOLDER, URL


_EMOJI = r"[\u2600-\u27bf\u2b50-\u2b55\U0001f1e6-\U0001faff]"
_JOINED = r"(?:[\ufe0e\ufe0f\u200d\u20e3\U0001f3fb-\U0001f3ff]|(?<=\u200d)" + _EMOJI + ")*"

# The kinds by their names in reports. Where two match at one place, the first one counts.
_KINDS = {
    "URLs": URL,
    "e-mail addresses": E_MAIL,
    "placeholders": PLACEHOLDER,
    "emoji": _EMOJI + _JOINED,
    "numbers": r"\d+(?:[.,:]\d+)*",
}
_PATTERN = regex.compile("|".join(f"({pattern})" for pattern in _KINDS.values()))

KINDS = tuple(_KINDS)


def copied_strings(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """The kind and the match of each string of a text that a translation copies, from left to right.

    Numbers may change their separators in a translation: "1,000.5" becomes "1.000,5".
    """
    for match in _PATTERN.finditer(text):
        yield KINDS[(match.lastindex or 1) - 1], match


def rewrite(
    text: str, around: Callable[[str], str], copied: Callable[[str, re.Match[str]], str] = lambda _, match: match[0]
) -> str:
    """Apply `around` to ordinary text, and `copied` to the strings that a translation copies."""
    changed, end = "", 0
    for kind, match in copied_strings(text):
        changed += around(text[end : match.start()]) + copied(kind, match)
        end = match.end()
    return changed + around(text[end:])
