"""The output directory of an export."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..io.files import atomic_directory
from ..io.manifests import Manifest


PARITY = "parity.json"


def is_export(directory: Path) -> bool:
    """Whether a directory is an export, by its manifest."""
    try:
        return Manifest.load(directory).notes.get("is_export") is True
    except (OSError, ValueError):
        return False


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
    if force and output.exists() and not is_export(output):
        raise FileExistsError(f"output: {output} is not an exported model, so it is kept; name another directory")
    with atomic_directory(output, replace=force) as directory:
        yield directory
        Manifest.from_files(directory, is_export=True).save(directory)
