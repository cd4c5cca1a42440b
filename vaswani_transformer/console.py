"""Text from data, such as sentences and file names, escaped for a terminal.

Data may contain markup of rich (`[/INST]`, `[link=...]`, `:smile:`) and escape sequences, which a terminal executes.
Recipes print it through `PlainConsole`, and their errors through `one_line`.
"""

import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text


def printable(text: str) -> str:
    """Escape control characters, except line feeds and tabs, and lone surrogates."""
    return "".join(_escaped(character) for character in text) if _needs_escapes(text) else text


def one_line(message: object) -> str:
    """The message of an error as one printable line."""
    return printable(" ".join(str(message).split()))


def _needs_escapes(text: str) -> bool:
    return any(_is_hostile(character) for character in set(text))


def _is_hostile(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii") if _is_hostile(character) else character


class PlainConsole(Console):
    """A console that shows strings as they are: no markup, no emoji codes, no control characters.

    This applies to printed strings, and to strings as cells, headings and titles of tables.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **kwargs})

    def render_str(self, text: str, **kwargs: Any) -> Text:
        return super().render_str(printable(text), **kwargs)
