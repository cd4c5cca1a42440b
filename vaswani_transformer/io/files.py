"""File primitives: atomic writes, locks, digests and manifests. No other module renames, hashes or locks files."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from filelock import BaseFileLock, FileLock, Timeout
from safetensors import SafetensorError
from transformers.utils import logging


logger = logging.get_logger(__name__)

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

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


# Atomic writes


def atomic_write(path: str | Path, content: str | Iterable[bytes]) -> None:
    """Write a file, text or chunks of bytes, atomically and durably; an earlier one is replaced."""
    path = Path(path)
    chunks = [content.encode()] if isinstance(content, str) else content
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with _write_errors_name(path), open(temporary, "wb") as file:
            file.writelines(chunks)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path, option: str = "output", replace: bool = False) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `path` at the end and is deleted after an error.

    The lock of `path` is held meanwhile. What a killed process left behind, `.NAME.incomplete`, is deleted.

    Args:
        path: The directory to make.
        option: The user's name for `path`, with which messages begin.
        replace: Whether to replace an earlier directory.

    Raises:
        FileExistsError: `path` exists, at the beginning or at the end, and `replace` is not set.
        ValueError: Another process is making `path`.
    """
    path = Path(path)
    staged = path.with_name(f".{path.name}.incomplete")
    with locked(path, option):
        _restore(path)
        _refuse_existing(path, option, replace)
        shutil.rmtree(staged, ignore_errors=True)
        try:
            staged.mkdir()
            with _write_errors_name(path):
                yield staged
            _refuse_existing(path, option, replace)  # another program may have made it
            publish(staged, path)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _refuse_existing(path: Path, option: str, replace: bool) -> None:
    if path.exists() and not replace:
        raise FileExistsError(f"{option}: {path} exists already; name another directory, or remove it")


@contextmanager
def _write_errors_name(path: Path) -> Iterator[None]:
    """Name the path in an error of the system that names none, as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def publish(staged: Path, path: Path) -> None:
    """Move a complete file or directory to its place, durably, replacing an earlier one.

    For a file the replacement is atomic. An earlier directory is first moved aside, and back if an error occurs.
    """
    for each in (*staged.rglob("*"), staged):
        _sync(each)
    if not staged.is_dir():
        os.replace(staged, path)
    else:
        aside = _aside(path)
        try:
            if path.exists():
                os.replace(path, aside)
            os.replace(staged, path)
        finally:
            _restore(path)
            shutil.rmtree(aside, ignore_errors=True)
    _sync(path.parent)


def _aside(path: Path) -> Path:
    """Where an earlier directory lies while another one takes its place."""
    return path.with_name(f".{path.name}.replaced")


def _restore(path: Path) -> None:
    """Move a directory back that `publish` moved aside, if nothing took its place."""
    if _aside(path).exists() and not path.exists():
        os.replace(_aside(path), path)


def atomic_remove(directory: Path, temporary_folder: Path) -> None:
    """Delete a directory by way of a folder on the same file system, so that no part of it remains here."""
    temporary_folder.mkdir(exist_ok=True)
    remains = temporary_folder / f"{directory.name}.{uuid.uuid4().hex[:12]}.tmp"
    os.replace(directory, remains)
    shutil.rmtree(remains, ignore_errors=True)


@contextmanager
def file_errors_as_os_error(what: str) -> Iterator[None]:
    """Turn any error that a library raises for an unwritable file into an OSError that begins with `what`."""
    try:
        yield
    except Exception as error:
        # `datasets` closes its file once more after a failed write, and raises for that.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        # torch reports a full disk as a plain RuntimeError, tokenizers as a plain Exception; subclasses differ.
        if not isinstance(cause, (OSError, SafetensorError)) and type(cause) not in (RuntimeError, Exception):
            raise
        hint = " (is the disk full?)" if isinstance(cause, RuntimeError) else ""
        raise OSError(f"{what}: {' '.join(str(cause).split())}{hint}") from error


def _sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(option: str, path: str | Path) -> Path:
    """Make a directory unless it exists.

    Args:
        option: The user's name for it, with which messages begin.
        path: The directory.

    Raises:
        ValueError: It cannot be made, is a file, or cannot be written into.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ValueError(
            f"{option}: cannot write into {path} ({error.strerror}); name another directory with --{option}"
        ) from None
    return path


# Locks


@contextmanager
def locked(path: Path, option: str = "output_dir", wait: bool = False) -> Iterator[None]:
    """Lock a file or directory, so that no two commands write it.

    The lock is a file beside it, `.NAME.lock`, which is removed at the end. The system releases it however the process
    ends.

    Args:
        path: Need not exist, and may be replaced or removed.
        option: The user's name for it, with which messages begin.
        wait: Whether to wait while another process holds the lock.

    Raises:
        ValueError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    acquire(lock, path, option, timeout=-1 if wait else 0)
    try:
        yield
    finally:
        try:
            Path(lock.lock_file).unlink(missing_ok=True)  # which a process that has just opened it notices
        finally:
            lock.release()


def acquire(lock: BaseFileLock, path: Path, option: str, timeout: float = 0.0) -> None:
    """Acquire the lock of a path, or warn where the file system has none, such as NFS without its lock daemon.

    Raises:
        ValueError: Another process still holds it after `timeout` seconds.
    """
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise ValueError(f"{option}: another process is at work in {path}; wait for it, or end it") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # for ENOSYS filelock has a substitute
            raise
        logger.warning(f"{option}: {path} cannot be locked; start no second command that writes there: {error}")


# Digests and manifests

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


# Inputs of a command


def identify(path: str | Path) -> Json:
    """Describe an input file for a manifest, by its place and digest."""
    path = Path(path)
    return {"file": str(path.absolute()), "sha256": file_digest(path)}


def identify_tokenizer(name: str) -> Json:
    """Describe a saved tokenizer for a manifest: its files by their common digest, one of the Hub by its name."""
    if (digest := matching_files_digest(Path(name), _TOKENIZER_FILES)) is not None:
        return {"file": str(Path(name).absolute()), "sha256": digest}
    return {"name": name}


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


# JSON


def read_json(path: str | Path, place: str | None = None) -> dict[str, Json]:
    """Read a file that holds a JSON object.

    Args:
        path: The file.
        place: Its name in errors; by default the whole path.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is damaged or foreign; the message names the file and the line.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{place or path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{place or path} is damaged: it holds no JSON object")
    return content
