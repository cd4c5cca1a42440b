"""Digests of files and of JSON values."""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from .files import Json


_digests: dict[tuple[int, ...], str] = {}  # by device, inode, size and time of the last change


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal; a program reads a file that does not change only once."""
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_ctime_ns)
        digest = _digests.get(key) or hashlib.file_digest(file, "sha256").hexdigest()
    # As in git: a file that changed within the last second may change again without getting another time.
    if time.time_ns() - stat.st_ctime_ns > 1e9:
        _digests[key] = digest
    return digest


def content_digest(content: Json) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def matching_files_digest(directory: Path, patterns: Iterable[str]) -> str | None:
    """Digest of the names and contents of matching files, wherever the directory lies; None if no file matches."""
    files: dict[str, Json] = {path.name: file_digest(path) for pattern in patterns for path in directory.glob(pattern)}
    return content_digest(files) if files else None
