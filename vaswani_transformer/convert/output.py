"""The output directory of an export."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..io.files import atomic_directory


PARITY = "parity.json"
_FILES = "export.json"  # lists the files of an export, and marks a directory as one


@contextmanager
def export_directory(output: Path, force: bool) -> Iterator[Path]:
    """Yield a directory to write an export into, which becomes `output` at the end.

    Args:
        output: The directory to create.
        force: Whether to replace an earlier export.

    Raises:
        FileExistsError: `output` exists, and `force` is false or it is no export.
        ValueError: Another process is writing `output`.
    """
    if force and output.exists() and not (output / _FILES).is_file():
        raise FileExistsError(f"output: {output} is not an exported model, so it is kept; name another directory")
    with atomic_directory(output, replace=force) as directory:
        yield directory
        files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
        (directory / _FILES).write_text(json.dumps({"files": files}, indent=2) + "\n", encoding="utf-8")
