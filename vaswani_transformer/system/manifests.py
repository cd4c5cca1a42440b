"""Manifests, which list the files of a complete directory and reveal damage."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import Json, atomic_write, read_json


MANIFEST_NAME = "manifest.json"
_CONFIG = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "vocab-src.json",
    "vocab-tgt.json",
    "target_vocab.json",
    "merges.txt",
    "*.model",
    "*.spm",
)
# The files that a saved model needs. Other files of its directory may hold secrets, or change later.
MODEL_FILES = (
    _CONFIG,
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    *TOKENIZER_FILES,
)


@dataclass(frozen=True)
class Manifest:
    """The files of a complete directory, as `manifest.json` in it records them.

    A model's config.json is left out: score.py adds its measurements to it, and two files cannot change at once.

    Attributes:
        files: Size in bytes and SHA-256 of each file, by its path in the directory.
        notes: Other entries, such as the step of a checkpoint.
    """

    files: dict[str, tuple[int, str]]
    notes: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def from_files(
        cls,
        directory: Path,
        patterns: Iterable[str] = ("**/*",),
        notes: Mapping[str, Json] | None = None,
        has_config: bool = False,
    ) -> "Manifest":
        """Read the files of a directory and of its subdirectories, by default every one but config.json."""
        paths = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
        return cls(
            {
                path.relative_to(directory).as_posix(): (path.stat().st_size, file_digest(path))
                for path in sorted(paths)
                if path.name != MANIFEST_NAME and (has_config or path.name != _CONFIG)
            },
            {**(notes or {})},
        )

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Read the manifest of a directory.

        Raises:
            OSError: The manifest is missing or cannot be read.
            ValueError: The manifest is damaged.
        """
        notes = read_json(directory / MANIFEST_NAME, MANIFEST_NAME)
        files: Any = notes.pop("files", None)
        try:
            return cls({name: (entry["size"], entry["sha256"]) for name, entry in files.items()}, notes)
        except (AttributeError, KeyError, TypeError):
            raise ValueError(f"{MANIFEST_NAME} is damaged: it lists no files with sizes and digests") from None

    def save(self, directory: Path) -> None:
        files = {name: {"size": size, "sha256": digest} for name, (size, digest) in self.files.items()}
        atomic_write(directory / MANIFEST_NAME, json.dumps({**self.notes, "files": files}, indent=2) + "\n")


def find_damage(directory: str | Path, *patterns: str) -> str | None:
    """Describe the damage of a directory with a manifest; None if each file that matches a pattern is as written."""
    directory = Path(directory)
    try:
        manifest = Manifest.load(directory)
    except FileNotFoundError:
        return f"{MANIFEST_NAME} is missing" if directory.is_dir() else "is missing"
    except (ValueError, OSError) as error:
        return str(error)
    for name, (size, digest) in manifest.files.items():
        path = directory / name
        if not any(map(path.match, patterns or ("*",))):
            continue
        if not path.is_file():
            return f"{path.name} is missing"
        if path.stat().st_size != size:
            return f"{path.name} has {path.stat().st_size} bytes instead of {size}"
        if file_digest(path) != digest:
            return f"{path.name} has changed since it was written"
    return None


_digests: dict[tuple[int, ...], str] = {}  # by device, inode, size and time of the last change


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal; a program reads an unchanged file only once."""
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_ctime_ns)
        digest = _digests.get(key) or hashlib.file_digest(file, "sha256").hexdigest()
    # As in git: a file that changed within the last second may change again without a new time stamp.
    if time.time_ns() - stat.st_ctime_ns > 1e9:
        _digests[key] = digest
    return digest


def content_digest(content: Json) -> str:
    """SHA-256 of a JSON value, regardless of the order of its keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def matching_files_digest(directory: Path, patterns: Iterable[str]) -> str | None:
    """Digest of the names and contents of matching files, independent of the directory; None if no file matches."""
    files: dict[str, Json] = {path.name: file_digest(path) for pattern in patterns for path in directory.glob(pattern)}
    return content_digest(files) if files else None


def identify(path: str | Path) -> Json:
    """Describe an input file for a record, by its path and digest."""
    path = Path(path)
    return {"file": str(path.absolute()), "sha256": file_digest(path)}


def require_same_origin(before: Mapping[str, Json], now: Mapping[str, Json], what: str, advice: str) -> None:
    """Compare the recorded origin of a directory with the origin in the command that wants to use it.

    Entries present on only one side are ignored. Files are compared by content, and shown by name.

    Raises:
        ValueError: An entry differs: "{what} width (1.0 then, 0.5 now); {advice}".
    """
    different = [
        f"{name} ({_text(before[name])} then, {_text(value)} now)"
        for name, value in now.items()
        if name in before and digests_only(before[name]) != digests_only(value)
    ]
    if different:
        raise ValueError(f"{what} {', '.join(different)}; {advice}")


def digests_only(value: Json) -> Json:
    """The part of an origin, or of an entry of it, that is compared: digests replace input files."""
    if isinstance(value, list):
        return [digests_only(each) for each in value]
    if isinstance(value, dict) and "sha256" not in value:
        return {name: digests_only(each) for name, each in value.items()}
    return value["sha256"] if isinstance(value, dict) else value


def _text(value: Json) -> str:
    """The value as shown in a message: names of input files, and of corpora and tokenizers on the Hub."""
    if isinstance(value, list):
        return " ".join(_text(each) for each in value)
    if isinstance(value, dict) and "name" in value:
        return " ".join(str(value[key]) for key in ("name", "config") if value.get(key) is not None)
    return str(value.get("file", value) if isinstance(value, dict) else value)
