"""Text from data, such as sentences and file names, made fit for a terminal.

Data may hold what rich takes for markup (`[/INST]`, `[link=...]`, `:smile:`) and what a terminal obeys (escape
sequences). Recipes show it through `PlainConsole`, and end with `one_line`.
"""

import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text


def printable(text: str) -> str:
    """The text with control characters and lone surrogates as escapes; line feeds and tabs stay."""
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

    It holds for what is printed, and for the cells, headings and titles of tables that are given as strings.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **kwargs})

    def render_str(self, text: str, **kwargs: Any) -> Text:
        return super().render_str(printable(text), **kwargs)
