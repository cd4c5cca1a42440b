"""Tables and progress on a terminal.

Data may contain rich markup (`[/INST]`, `:smile:`) and escape sequences, which a terminal executes. Recipes print it
through `PlainConsole`.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm.auto import tqdm

from .messages import printable


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
        if not (self.is_terminal or "COLUMNS" in os.environ):
            self.width = 10_000

    def print_table(self, header: Sequence[str], rows: Iterable[Sequence[str | Text]], **options: Any) -> None:
        """Print a table, with options of rich's `Table`, such as `title`."""
        table = Table(*header, **options)
        for row in rows:
            table.add_row(*row)
        if not self.is_terminal:
            table.box, table.title_justify, table.caption_justify = None, "left", "left"
        self.print(table)

    def render_str(self, text: str, **kwargs: Any) -> Text:
        return super().render_str(printable(text), **kwargs)
