"""Manifests: the files of a complete directory, and their damage."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .digests import file_digest
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
# What a saved model needs. Other files of its directory may hold secrets, or change later.
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

    config.json is left out: score.py adds to it what it learns of a model, and two files cannot change at
    once.

    Attributes:
        files: Size in bytes and SHA-256 of each, by its path in the directory.
        notes: Other entries, such as the step of a checkpoint.
    """

    files: dict[str, tuple[int, str]]
    notes: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def from_files(cls, directory: Path, patterns: Iterable[str] = ("**/*",), /, **notes: Json) -> "Manifest":
        """Read the files of a directory, by default every one, also in directories below it."""
        paths = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
        return cls(
            {
                path.relative_to(directory).as_posix(): (path.stat().st_size, file_digest(path))
                for path in sorted(paths)
                if path.name not in (MANIFEST_NAME, _CONFIG)
            },
            notes,
        )

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Read the manifest of a directory.

        Raises:
            OSError: There is none, or it cannot be read.
            ValueError: It is damaged.
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
    """What is wrong with a directory that has a manifest; None if each file that matches a pattern is as written."""
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
