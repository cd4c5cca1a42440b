"""The output directory of an export."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..files import atomic_directory, read_json


# Lists the files of an export, so that --force deletes nothing else.
_RECORD = "export.json"
PARITY = "parity.json"


def require_replaceable(output: Path, force: bool) -> None:
    """Refuse an existing output directory.

    Args:
        output: The directory to create.
        force: Whether to replace an earlier export.

    Raises:
        FileExistsError: `output` exists and `force` is false, or `output` contains files that no export wrote.
    """
    if not output.exists():
        return
    if not force:
        raise FileExistsError(f"output: {output} exists already; name another directory, or replace it with --force")
    record = read_json(output / _RECORD)
    if not isinstance(record, dict):
        raise FileExistsError(f"output: {output} is not an exported model, so it is kept; name another directory")
    if others := _files(output) - set(record.get("files", ())):
        raise FileExistsError(
            f"output: {output} has files that are not of its export, such as {min(others)}, so it is kept; remove "
            f"them, or name another directory"
        )


@contextmanager
def export_directory(output: Path) -> Iterator[Path]:
    """Yield a directory to write an export into, which replaces `output` at the end."""
    with atomic_directory(output, replace=True) as directory:
        yield directory
        files = sorted({*_files(directory), PARITY, _RECORD})
        (directory / _RECORD).write_text(json.dumps({"files": files}, indent=2) + "\n", encoding="utf-8")


def _files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
