"""Files that appear whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file at once, in place of an earlier one if there is one, and whole even if the power fails."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: str | Path) -> dict[str, Any] | None:
    """What a file holds; None if there is none, or only the beginning of one."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
