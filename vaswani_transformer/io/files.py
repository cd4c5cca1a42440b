"""File primitives: atomic writes, digests, manifests and locks. No other module renames, hashes or locks files."""

import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from filelock import BaseFileLock, FileLock, Timeout
from safetensors import SafetensorError
from transformers.utils import logging


logger = logging.get_logger(__name__)

MANIFEST_NAME = "manifest.json"
_OWNER = "temporary.json"  # marks a temporary directory as ours
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
# align.py and score.py add to it what they learn of a model. So a manifest has no digest of it: two files cannot change
# at once, and a kill between the two writes would leave a model that looks damaged.
_CONFIG = "config.json"
# What a saved model needs. Other files of its directory may hold secrets, or change later.
MODEL_FILES = (
    _CONFIG,
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    *_TOKENIZER_FILES,
)
_FORMAT = 1
_LARGEST_JSON = 1 << 25  # bytes; large vocabularies have nearly as many
_DEEPEST_JSON = 50  # levels

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
    except OSError as error:
        if error.errno and not error.filename:  # a failed write names no file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path, option: str = "output", replace: bool = False) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `path` at the end and is deleted after an error.

    The lock of `path` is held meanwhile. What killed processes of this machine have left behind is deleted.

    Args:
        path: The directory to make.
        option: The user's name for `path`, with which messages begin.
        replace: Whether to replace an earlier directory.

    Raises:
        FileExistsError: `path` exists, at the beginning or at the end, and `replace` is not set.
        ValueError: Another process is making `path`.
        OSError: The disk is full, or a file is larger than a limit.
    """
    path = Path(path)
    with locked(path, option):
        _remove_leftovers(path)
        temporary = _temporary(path)
        staged = temporary / path.name
        try:
            _require_absent(path, option, replace)
            temporary.mkdir(parents=True)
            owner = {"host": platform.node(), "process": os.getpid()}
            (temporary / _OWNER).write_text(json.dumps(owner), encoding="utf-8")
            staged.mkdir()
            yield staged
            _require_absent(path, option, replace)  # another program may have made it
            publish(staged, path)
        except (OSError, SafetensorError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            raise OSError(f"{option}: cannot write {path}: {error}") from error
        finally:
            _remove_temporary(temporary)


def _require_absent(path: Path, option: str, replace: bool) -> None:
    if path.exists() and not replace:
        raise FileExistsError(f"{option}: {path} exists already; name another directory, or remove it")


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
    """Delete a directory by way of a folder on the same file system, so that no part of it remains here."""
    temporary_folder.mkdir(exist_ok=True)
    remains = _temporary(directory, temporary_folder)
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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path, folder: Path | None = None) -> Path:
    """A name that no other process uses, on any machine."""
    return (folder or path.parent) / f"{path.name}.{uuid.uuid4().hex[:12]}.tmp"


def _remove_temporary(directory: Path) -> None:
    """Delete a temporary directory, its mark last, so that what an interruption leaves is still marked as ours."""
    for path in directory.glob("*"):
        if path.name != _OWNER:
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        (directory / _OWNER).unlink(missing_ok=True)
        directory.rmdir()


def _remove_leftovers(path: Path) -> None:
    """Delete temporary directories of killed processes; the caller holds the lock of `path`, so that none is in use.

    A directory without a mark of ours is another program's, and is deleted only if it is empty. One of another machine
    may be in use, if the lock is not seen there.
    """
    for temporary in path.parent.glob(f"{glob.escape(path.name)}.{12 * '[0-9a-f]'}.tmp"):
        with suppress(ValueError, OSError):
            if not any(temporary.iterdir()):
                temporary.rmdir()  # killed before it was marked, or after
            elif read_json(temporary / _OWNER).get("host") == platform.node():
                replaced = temporary / f"{path.name}.replaced"
                if replaced.exists() and not path.exists():  # killed between two renames of `publish`
                    os.replace(replaced, path)
                _remove_temporary(temporary)


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
        files: The "size" in bytes and "sha256" of each, by path relative to the directory; of config.json neither.
        notes: Other entries, such as the step of a checkpoint.
    """

    files: dict[str, dict[str, Json]]
    notes: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path, patterns: Iterable[str] = ("**/*",), /, **notes: Json) -> "Manifest":
        """Read the files of a directory, by default every one, also in directories below it."""
        found = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
        paths = sorted(path for path in found if path.name != MANIFEST_NAME)
        files: dict[str, dict[str, Json]] = {
            path.relative_to(directory).as_posix(): {}
            if path.name == _CONFIG
            else {"size": path.stat().st_size, "sha256": file_digest(path)}
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
        content = read_json(directory / MANIFEST_NAME, MANIFEST_NAME)
        if content.pop("sha256", None) != content_digest(content):
            raise ValueError(f"{MANIFEST_NAME} is damaged")
        if (form := content.pop("format", None)) != _FORMAT:
            raise ValueError(f"{MANIFEST_NAME} has format {form}, not {_FORMAT}")
        files = content.pop("files", None)
        entries = {str(name): entry for name, entry in _members(files) if isinstance(entry, dict)}
        if files != entries:
            raise ValueError(f"{MANIFEST_NAME} is damaged")
        return cls(entries, content)

    def save(self, directory: Path) -> None:
        content: dict[str, Json] = {**self.notes, "files": {**self.files}, "format": _FORMAT}
        text = json.dumps({**content, "sha256": content_digest(content)}, indent=2) + "\n"
        atomic_write(directory / MANIFEST_NAME, text)


def find_damage(directory: str | Path, *patterns: str) -> str | None:
    """What is wrong with a directory that has a manifest; None if each file that matches a pattern is as written.

    Of config.json it is enough that it is a JSON object.
    """
    directory = Path(directory)
    try:
        files = Manifest.load(directory).files
        patterns = patterns or ("*",)
        entries = {directory / name: files[name] for name in files if any(map(Path(name).match, patterns))}
        for path, entry in entries.items():
            if not path.is_file():
                return f"{path.name} is missing"
            if path.name == _CONFIG:
                read_json(path, _CONFIG)
            elif (size := path.stat().st_size) != entry.get("size"):
                return f"{path.name} has {size} bytes instead of {entry.get('size')}"
        for path, entry in entries.items():
            if path.name != _CONFIG and file_digest(path) != entry.get("sha256"):
                return f"{path.name} has changed since it was written"
        return None
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
    if isinstance(value, dict) and "name" in value:
        return " ".join(str(value[key]) for key in ("name", "config") if value.get(key) is not None)
    return str(value.get("file", value) if isinstance(value, dict) else value)


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
        OSError: It cannot be locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    acquire(lock, path, option, timeout=-1 if wait else 0)
    with ExitStack() as held:
        held.callback(lock.release)
        held.callback(Path(lock.lock_file).unlink, missing_ok=True)  # which a process that has just opened it notices
        yield


def acquire(lock: BaseFileLock, path: Path, option: str, timeout: float = 0.0) -> None:
    """Acquire the lock of a path, or warn where the file system has none, such as NFS without its lock daemon.

    Raises:
        ValueError: Another process still holds it after `timeout` seconds.
        OSError: It cannot be locked.
    """
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise ValueError(f"{option}: another process is at work in {path}; wait for it, or end it") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # for ENOSYS filelock has a substitute
            raise OSError(f"{option}: {path} cannot be locked: {error}") from error
        logger.warning(f"{option}: {path} cannot be locked; start no second command that writes there: {error}")


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
        raise ValueError(
            f"{option}: cannot write into {path} ({error.strerror}); name another directory with --{option}"
        ) from None
    return path


def require_directory(option: str, path: Path) -> None:
    """Raise a NotADirectoryError that names the option if a path, or one that leads to it, is something else."""
    for part in (path, *path.parents):
        if part.exists() or part.is_symlink():
            if not part.is_dir():
                raise NotADirectoryError(f"{option}: {part} is not a directory; name a directory")
            return


def read_text(path: str | Path, largest: int) -> str:
    """Read a file in UTF-8.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is not UTF-8, or has more than `largest` bytes. The message does not name the file.
    """
    with open(path, "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest} bytes; is it another file?")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8 ({error.reason})") from None


def read_json(path: str | Path, place: str | None = None) -> dict[str, Json]:
    """Read a file that holds a JSON object.

    Args:
        path: The file.
        place: Its name in errors; by default the whole path.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is damaged or foreign, as from `parse_json`; the message names the file and the line.
    """
    try:
        return parse_json(read_text(path, _LARGEST_JSON))
    except ValueError as error:
        raise ValueError(f"{place or path} is damaged: {error}") from None


def parse_json(text: str) -> dict[str, Json]:
    """Parse a JSON object.

    Raises:
        ValueError: It is no JSON object, or is deeper than any that a program writes, or repeats a key.
    """
    try:
        found = json.loads(text, object_pairs_hook=without_repetition)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} is not JSON ({error.msg})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[Json] = [found]
    for _ in range(_DEEPEST_JSON):
        level = [item for each in level for _, item in _members(each)]
    if level:
        raise ValueError("it is nested too deeply")
    if not isinstance(found, dict):
        raise ValueError(f"it must be an object, is {json.dumps(found)[:80]}")
    return found


def _members(value: Json) -> Iterable[tuple[int | str, Json]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


def without_repetition(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """A JSON object; for `object_pairs_hook`, without which the last of two members of one name counts in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {repeated!r} twice")
    return found
