"""Files that appear whole or not at all."""

import os
from pathlib import Path


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file at once, in place of an earlier one if there is one, and whole even if the power fails."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
