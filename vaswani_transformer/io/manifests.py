"""Digests of files, and manifests: what a complete directory holds, and what it was made from."""

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
_TOKENIZER_FILES = (
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
    *_TOKENIZER_FILES,
)

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


@dataclass(frozen=True)
class Manifest:
    """The files of a complete directory, as `manifest.json` in it records them.

    config.json is left out: align.py and score.py add to it what they learn of a model, and two files cannot change at
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


def identify(name: str, known: Json = None, **place: Json) -> Json:
    """Describe an input for a manifest: a file by its digest, anything else by its name.

    Args:
        name: A file, or something else, such as a dataset of the Hub.
        known: A list of earlier descriptions, or None. The digest of a file with the same size and time is taken from
            there; a file that was deleted since then is described as before.
        place: What to note with the name of something else.
    """
    path = Path(name)
    files = [each for each in known if isinstance(each, dict) and "file" in each] if isinstance(known, list) else []
    if not path.is_file():
        gone = (each for each in files if each["file"] == str(path.absolute()))
        return next(gone, {"name": name, **place})
    stat = path.stat()
    entry: dict[str, Json] = {"file": str(path.absolute()), "size": stat.st_size, "modified": stat.st_mtime_ns}
    unchanged = (each for each in files if entry.items() <= each.items())
    return next(unchanged, None) or {**entry, "sha256": file_digest(path)}


def identify_tokenizer(name: str, known: Json = None) -> Json:
    """Describe a saved tokenizer for a manifest: its files by their common digest, one of the Hub by its name.

    Args:
        name: A directory, or a name on the Hub.
        known: The earlier description, which stays if the directory was deleted since then.
    """
    directory = Path(name)
    if (digest := matching_files_digest(directory, _TOKENIZER_FILES)) is not None:
        return {"file": str(directory.absolute()), "sha256": digest}
    was_here = isinstance(known, dict) and known.get("file") == str(directory.absolute())
    return known if was_here else {"name": name}


def manifest_digest(manifest: Mapping[str, Json]) -> str:
    """Digest of a manifest, in which an input file counts by its content alone."""
    return content_digest({name: _content(value) for name, value in manifest.items()})


def require_same_manifest(before: Mapping[str, Json], now: Mapping[str, Json], what: str, advice: str) -> None:
    """Compare what a directory records of its origin with what a command would put there, where both have an entry.

    A file, an entry with "file" and "sha256", is compared by its digest and shown by its name.

    Raises:
        ValueError: An entry differs: "{what} width (1.0 then, 0.5 now); {advice}".
    """
    different = [
        f"{name} ({_shown(before[name])} then, {_shown(value)} now)"
        for name, value in now.items()
        if name in before and _content(before[name]) != _content(value)
    ]
    if different:
        raise ValueError(f"{what} {', '.join(different)}; {advice}")


def _content(value: Json) -> Json:
    if isinstance(value, list):
        return [_content(each) for each in value]
    return value["sha256"] if isinstance(value, dict) and "sha256" in value else value


def _shown(value: Json) -> str:
    if isinstance(value, list):
        return " ".join(_shown(each) for each in value)
    if isinstance(value, dict) and "name" in value:
        return " ".join(str(value[key]) for key in ("name", "config") if value.get(key) is not None)
    return str(value.get("file", value) if isinstance(value, dict) else value)
