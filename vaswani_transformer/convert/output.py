"""The output directory of an export."""

from pathlib import Path


def require_replaceable(output: Path, force: bool, is_export: bool) -> None:
    """Refuse an existing output directory.

    Args:
        output: The directory to create.
        force: Whether to replace an earlier export.
        is_export: Whether `output` is an earlier export.

    Raises:
        FileExistsError: `output` exists, and `force` or `is_export` is false.
    """
    if not output.exists():
        return
    if not force:
        raise FileExistsError(f"output: {output} exists already; name another directory, or replace it with --force")
    if not is_export:
        raise FileExistsError(f"output: {output} is not an exported model, so it is kept; name another directory")
