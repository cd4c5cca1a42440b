"""Directories that appear whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_directory(output: str | Path) -> Iterator[Path]:
    """A directory to write into, which becomes `output` at the end, and vanishes where it comes to no end.

    Raises:
        FileExistsError: `output` exists.
    """
    output = Path(output)
    if output.exists():
        raise FileExistsError(f"output: {output} exists already; name another directory, or remove it")
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by one that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
