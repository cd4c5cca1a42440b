"""`make reference`: a page for each command, with its docstring and options, which `vaswani COMMAND --help` prints."""

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from unittest import mock

from vaswani_transformer.__main__ import RECIPES, recipes


FOLDER = RECIPES / "reference"


def page(command: str, recipe: Path) -> str:
    """The page of a command."""
    program, shown = f"vaswani {command}", io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "102"}),  # argparse leaves two free
        mock.patch.object(sys, "argv", [str(recipe), "--help"]),
        contextlib.redirect_stdout(shown),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_path(str(recipe), {"COMMAND": program}, run_name="__main__")
    lines = "\n".join(line.rstrip() for line in shown.getvalue().splitlines())
    return f"# {program}\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, file in recipes().items():
        (FOLDER / f"{name}.md").write_text(page(name, file), encoding="utf-8")
