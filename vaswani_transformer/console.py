"""Text from data, such as sentences and file names, escaped for a terminal.

Data may contain markup of rich (`[/INST]`, `[link=...]`, `:smile:`) and escape sequences, which a terminal executes.
Recipes print it through `PlainConsole`, and their errors through `one_line`.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.text import Text
from transformers.utils import logging


_HOSTILE = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")


def printable(text: str) -> str:
    """Escape control characters, except line feeds and tabs, and lone surrogates."""
    return _HOSTILE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line(message: object) -> str:
    """The message of an error as one printable line."""
    return printable(" ".join(str(message).split()))


def hide_library_bars() -> None:
    """Turn off the progress bars of transformers and datasets: they count files, and break into ours."""
    logging.disable_progress_bar()
    if "datasets" in sys.modules:  # which takes a second to import
        sys.modules["datasets"].disable_progress_bars()


@contextmanager
def exit_on_error(program: str, *others: type[Exception]) -> Iterator[None]:
    """End the program with one line, its name first, after a ValueError, an OSError or one of `others`."""
    caught: tuple[type[Exception], ...] = (ValueError, OSError, *others)
    try:
        yield
    except caught as error:
        sys.exit(f"{program}: {one_line(error)}")


@contextmanager
def standard_output() -> Iterator[None]:
    """After an error, discard buffered output, which Python would try to write again at exit."""
    try:
        yield
    except OSError as error:
        if sys.stdout is not None:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has ended
            sys.exit(1)
        raise


class PlainConsole(Console):
    """A console that shows strings as they are: no markup, no emoji codes, no control characters.

    This applies to printed strings, and to strings as cells, headings and titles of tables. Lines are broken at the
    width of a terminal; in files and pipes they are not, so that names can be searched for and copied.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **kwargs})
        if not self.is_terminal:
            self.width = 10_000

    def render_str(self, text: str, **kwargs: Any) -> Text:
        return super().render_str(printable(text), **kwargs)
