"""File primitives: atomic writes, digests, manifests and locks. No other module renames, hashes or locks files."""

import errno
import glob
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError
from transformers.utils import logging


logger = logging.get_logger(__name__)

MANIFEST_NAME = "manifest.json"
_TOKENIZER_FILES = ("*token*.json", "vocab*", "merges.txt", "*.model", "*.spm")
_FORMAT = 1

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def atomic_write(path: str | Path, content: str | Iterable[bytes], temporary_folder: Path | None = None) -> None:
    """Write a file atomically and durably, replacing an earlier one.

    Args:
        path: The file.
        content: Text, or chunks of bytes.
        temporary_folder: Where the file is written before it is renamed, on the same file system; by default beside it.
    """
    path = Path(path)
    chunks = [content.encode()] if isinstance(content, str) else content
    temporary = _temporary(path, temporary_folder)
    try:
        with open(temporary, "wb") as file:
            file.writelines(chunks)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path, option: str = "output", replace: bool = False) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `path` at the end and is deleted after an error.

    Args:
        path: The directory to make. If another process makes it meanwhile, that one stays, unless `replace` is set.
        option: The user's name for `path`, with which messages begin.
        replace: Whether to replace an earlier directory.

    Raises:
        FileExistsError: `path` exists, and `replace` is not set.
        OSError: The disk is full.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise FileExistsError(f"{option}: {path} exists already; name another directory, or remove it")
    _remove_leftovers(path)
    temporary = _temporary(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if replace or not path.exists():
            publish(temporary, path)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise
        raise OSError(f"{option}: cannot write {path}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish(staged: Path, path: Path) -> None:
    """Move a complete file or directory to its place, durably, replacing an earlier one.

    For a file the replacement is atomic. An earlier directory is first moved aside, and back if an error occurs.
    """
    if not staged.is_dir():
        sync(staged)
        os.replace(staged, path)
    else:
        for each in (*staged.rglob("*"), staged):
            sync(each)
        replaced = staged.with_name(f"{staged.name}.replaced")
        try:
            if path.exists():
                os.replace(path, replaced)
            os.replace(staged, path)
        finally:
            if replaced.exists() and not path.exists():
                os.replace(replaced, path)
            shutil.rmtree(replaced, ignore_errors=True)
    sync(path.parent)


def atomic_remove(directory: Path, temporary_folder: Path) -> None:
    """Delete a directory, if there is one, by way of a folder on the same file system: no part of it ever remains."""
    if directory.exists():
        remains = temporary_folder / f"{directory.name}-removed"
        temporary_folder.mkdir(exist_ok=True)
        shutil.rmtree(remains, ignore_errors=True)
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


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a directory, are on the disk."""
    if path.is_dir() and os.name != "posix":
        return  # elsewhere a directory cannot be opened
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path, folder: Path | None = None) -> Path:
    """A name that no other live process of this machine uses."""
    return (folder or path.parent) / f"{path.name}.{os.getpid()}.tmp"


def _remove_leftovers(path: Path) -> None:
    """Delete the temporary directories of processes that were killed."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp*"):
        process = leftover.name.removeprefix(f"{path.name}.").partition(".")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            shutil.rmtree(leftover, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue  # not a process, or another user's


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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

    Attributes:
        files: The "size" in bytes and "sha256" of each, by path relative to the directory.
        notes: Other entries, such as the step of a checkpoint.
    """

    files: dict[str, dict[str, Json]]
    notes: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path, **notes: Json) -> "Manifest":
        """Read every file of a directory."""
        paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
        files: dict[str, dict[str, Json]] = {
            path.relative_to(directory).as_posix(): {"size": path.stat().st_size, "sha256": file_digest(path)}
            for path in paths
        }
        return cls(files, notes)

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Read the manifest of a directory.

        Raises:
            OSError: There is none, or it cannot be read.
            ValueError: It is damaged, or of another format.
        """
        try:
            content = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
            is_damaged = content.pop("sha256") != content_digest(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_damaged = True
        if is_damaged:
            raise ValueError(f"{MANIFEST_NAME} is damaged")
        if (form := content.pop("format")) != _FORMAT:
            raise ValueError(f"{MANIFEST_NAME} has format {form}, not {_FORMAT}")
        return cls(content.pop("files"), content)

    def save(self, directory: Path) -> None:
        content: dict[str, Json] = {**self.notes, "files": {**self.files}, "format": _FORMAT}
        text = json.dumps({**content, "sha256": content_digest(content)}, indent=2) + "\n"
        atomic_write(directory / MANIFEST_NAME, text)


def find_damage(directory: str | Path, pattern: str = "*") -> str | None:
    """What is wrong with a directory that has a manifest; None if each file that matches `pattern` is as written."""
    directory = Path(directory)
    try:
        files = Manifest.load(directory).files
        entries = {directory / name: entry for name, entry in files.items() if Path(name).match(pattern)}
        for path, entry in entries.items():
            if not path.is_file():
                return f"{path.name} is missing"
            if (size := path.stat().st_size) != entry["size"]:
                return f"{path.name} has {size} bytes instead of {entry['size']}"
        changed = (path.name for path, entry in entries.items() if file_digest(path) != entry["sha256"])
        return next((f"{name} has changed since it was written" for name in changed), None)
    except FileNotFoundError:
        return f"{MANIFEST_NAME} is missing" if directory.is_dir() else "is missing"
    except (ValueError, OSError) as error:
        return str(error)


def identify(name: str, known: Json = None, **place: Json) -> Json:
    """Describe an input for a manifest: a file by its digest, anything else by its name.

    Args:
        name: A file, or something else, such as a dataset of the Hub.
        known: A list of earlier descriptions, or None. The digest of a file with the same size and time is taken from
            there; a file that is gone is taken for the known one of that name.
        place: What to note with the name of something else.
    """
    path = Path(name)
    before = known if isinstance(known, list) else []
    files = [each for each in before if isinstance(each, dict) and "file" in each]
    if not path.is_file():
        gone = [each for each in files if Path(str(each["file"])).name == path.name]
        return gone[0] if gone else {"name": name, **place}
    stat = path.stat()
    found: dict[str, Json] = {"file": str(path.absolute()), "size": stat.st_size, "modified": stat.st_mtime_ns}
    untouched = [each for each in files if found.items() <= each.items()]
    return untouched[0] if untouched else {**found, "sha256": file_digest(path)}


def identify_tokenizer(name: str, known: Json = None) -> Json:
    """Describe a saved tokenizer for a manifest: its files by their common digest, one of the Hub by its name.

    Args:
        name: A directory, or a name on the Hub.
        known: The earlier description, which a directory that is gone keeps.
    """
    directory = Path(name)
    if (digest := matching_files_digest(directory, _TOKENIZER_FILES)) is not None:
        return {"file": str(directory.absolute()), "sha256": digest}
    was_here = isinstance(known, dict) and Path(str(known.get("file", ""))).name == directory.name
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
    return str(value.get("file", value.get("name", value)) if isinstance(value, dict) else value)


@contextmanager
def locked(directory: Path, option: str = "output_dir", wait: bool = False) -> Iterator[int]:
    """Lock a directory, so that no two commands write the same files.

    Child processes that inherit the descriptor inherit the lock, which holds until the last of them has ended.

    Args:
        directory: Must exist; it may be removed while it is locked.
        option: The user's name for it, with which messages begin.
        wait: Whether to wait while another process holds it.

    Yields:
        The descriptor that holds the lock.

    Raises:
        ValueError: Another process holds it, or has just removed it.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        is_free = try_lock(descriptor, option, patience=math.inf if wait else 0.0)
        if not is_free or not directory.exists() or not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise ValueError(f"{option}: another process is at work in {directory}; wait for it, or end it")
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, option: str, shared: bool = False, patience: float = 0.0) -> bool:
    """Lock an open file or directory until it is closed.

    Args:
        descriptor: Of the file or directory.
        option: The user's name for it, with which the warning begins.
        shared: Whether others may hold a shared lock too.
        patience: Seconds to wait while another process holds it.

    Returns:
        False if another process still holds it. Where the file system has no locks, True, after a warning.
    """
    import fcntl  # POSIX only

    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
            continue
        except OSError as error:
            logger.warning(f"{option}: cannot be locked; start no second command that writes there: {error.strerror}")
        return True


def make_directory(option: str, path: str | Path) -> Path:
    """Make a directory unless it exists, and check that files can be written into it.

    Args:
        option: The user's name for it, with which messages begin.
        path: The directory.

    Raises:
        ValueError: It cannot be made, is a file, or cannot be written into.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
    except OSError as error:
        raise ValueError(f"{option}: cannot write into {path} ({error.strerror}); name another directory") from None
    return path


def require_directory(option: str, path: Path) -> None:
    """Raise a NotADirectoryError that names the option if a path, or one that leads to it, is something else."""
    for part in (path, *path.parents):
        if part.exists() or part.is_symlink():
            if not part.is_dir():
                raise NotADirectoryError(f"{option}: {part} is not a directory; name a directory")
            return


def read_json(path: str | Path) -> dict[str, Any] | None:
    """The content of a JSON file; None if there is no such file, or it was cut short."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
