"""The output directory of an export."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..io.files import atomic_directory
from ..io.typed_json import Record


_RECORD = "export.json"
PARITY = "parity.json"


@dataclass(frozen=True)
class ExportRecord(Record):
    """The files of an export, so that --force deletes nothing else."""

    files: list[str]


@contextmanager
def export_directory(output: Path, force: bool) -> Iterator[Path]:
    """Yield a directory to write an export into, which becomes `output` at the end.

    Args:
        output: The directory to create.
        force: Whether to replace an earlier export.

    Raises:
        FileExistsError: `output` exists and `force` is false, or `output` contains files that no export wrote.
        ValueError: Another process is writing `output`.
    """
    with atomic_directory(output, replace=True) as directory:
        _require_replaceable(output, force)
        yield directory
        ExportRecord(sorted({*_files(directory), PARITY, _RECORD})).save(directory / _RECORD)
        _require_replaceable(output, force)


def _require_replaceable(output: Path, force: bool) -> None:
    if not output.exists():
        return
    if not force:
        raise FileExistsError(f"output: {output} exists already; name another directory, or replace it with --force")
    try:
        files = ExportRecord.load(output / _RECORD).files
    except (OSError, ValueError) as error:
        raise FileExistsError(
            f"output: {output} is not an exported model ({error}), so it is kept; name another directory"
        ) from None
    if others := _files(output) - set(files):
        raise FileExistsError(
            f"output: {output} has files that are not of its export, such as {min(others)}, so it is kept; remove "
            f"them, or name another directory"
        )


def _files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
