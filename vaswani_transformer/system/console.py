"""Text from data on a terminal.

Data may contain rich markup (`[/INST]`, `:smile:`) and escape sequences, which a terminal executes. Recipes print it
through `PlainConsole`.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm


_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")


def printable(text: str) -> str:
    """Escape control characters, except line feeds and tabs, and lone surrogates."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def one_line(message: object) -> str:
    """The message of an error as one printable line; an error of the operating system is shown without its number."""
    if isinstance(message, FileNotFoundError) and message.filename:
        message = f"there is no file or directory {message.filename}"
    elif isinstance(message, OSError) and message.strerror:
        message = f"{message.filename}: {message.strerror}" if message.filename else message.strerror
    return printable(" ".join(str(message).split()))


def program_name(recipe: str) -> str:
    """The name of a recipe in messages: "translate.py", or "vaswani translate" if called so."""
    return getattr(sys.modules["__main__"], "COMMAND", recipe)


@contextmanager
def errors_begin_with(place: str) -> Iterator[None]:
    """Turn any exception into a one-line ValueError that starts with `place`."""
    try:
        yield
    except Exception as error:  # libraries raise almost any type on an unusable file
        text = one_line(error)
        kind = "" if type(error) is ValueError and text else f"{type(error).__name__}: "
        raise ValueError(f"{place}: {kind}{text[:400]}") from error


class ProgressBar(tqdm):
    """The bar of tqdm on a terminal; nothing in a log."""

    def __init__(self, *args: Any, disable: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, disable=disable or None, **kwargs)


class PlainConsole(Console):
    """A console that shows strings as they are: no markup, no emoji codes, no control characters.

    This applies to printed strings, and to strings as cells, headings and titles of tables. Lines are wrapped at the
    width of a terminal or of COLUMNS, but not in other files and pipes, so that names can be searched for and copied;
    there, tables have no frame.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **kwargs})
        if not (self.is_terminal or "COLUMNS" in self._environ):
            self.width = 10_000

    def print(self, *objects: Any, **kwargs: Any) -> None:
        for table in objects:
            if isinstance(table, Table) and not self.is_terminal:
                table.box, table.title_justify, table.caption_justify = None, "left", "left"
        super().print(*objects, **kwargs)

    def render_str(self, text: str, **kwargs: Any) -> Text:
        return super().render_str(printable(text), **kwargs)
