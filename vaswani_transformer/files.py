"""Files that are replaced atomically, their digests, and comparison with what was recorded."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias


SEAL_NAME = "digests.json"

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file atomically, in place of an earlier one, durable even if the power fails."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def make_directory(option: str, path: str | Path) -> Path:
    """Make a directory unless it exists, and make sure that files can be written into it.

    Args:
        option: What the user gave it as; the message starts with it.
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


@contextmanager
def locked(directory: Path, option: str = "output_dir") -> Iterator[int]:
    """Hold a directory, so that no two processes write the same files.

    Processes that inherit the descriptor inherit the lock: it holds until the last of them has ended, too.

    Args:
        directory: Exists; it may be removed while it is held.
        option: What the user gave it as; the message starts with it.

    Yields:
        The descriptor that holds the lock.

    Raises:
        ValueError: Another process holds it, or has just removed it.
    """
    import fcntl  # elsewhere than on POSIX there is none

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = directory.exists() and os.path.samestat(os.fstat(descriptor), directory.stat())
        except BlockingIOError:
            is_free = False
        if not is_free:
            raise ValueError(f"{option}: another process is at work in {directory}; wait for it, or end it")
        yield descriptor
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk."""
    if path.is_dir() and os.name != "posix":
        return  # elsewhere a directory cannot be opened
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def seal_directory(directory: Path) -> None:
    """Write the digests of a directory's files into it, for `check_seal`."""
    digests = {path.name: file_digest(path) for path in sorted(directory.iterdir())}
    write_whole(directory / SEAL_NAME, json.dumps(digests, indent=2) + "\n")


def check_seal(directory: Path) -> None:
    """Compare the files of a directory with the digests that `seal_directory` wrote.

    Raises:
        ValueError: A file is missing or has changed. The message begins with its path.
    """
    seal = directory / SEAL_NAME
    digests = read_json(seal)
    if not isinstance(digests, dict):
        raise ValueError(f"{seal} is missing or damaged")
    for name, digest in digests.items():
        path = directory / name
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        if file_digest(path) != digest:
            raise ValueError(f"{path} has changed since it was written")


def read_json(path: str | Path) -> dict[str, Any] | None:
    """What a file holds; None if there is none, or only the beginning of one."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None


def require_directory(option: str, path: Path) -> None:
    """Raise a NotADirectoryError that names the option if a path, or one that leads to it, is something else."""
    for part in (path, *path.parents):
        if part.exists() or part.is_symlink():
            if not part.is_dir():
                raise NotADirectoryError(f"{option}: {part} is not a directory; name a directory")
            return


def differences(before: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """The entries that both mappings have and that differ, each as "name (X then, Y now)".

    An entry that describes a file, with its "file" and "sha256", is compared by its digest and shown by its name.
    """
    return [
        f"{name} ({_shown(before[name])} then, {_shown(value)} now)"
        for name, value in now.items()
        if name in before and _content(before[name]) != _content(value)
    ]


def _content(value: Json) -> Json:
    if isinstance(value, list):
        return [_content(each) for each in value]
    return value["sha256"] if isinstance(value, dict) and "sha256" in value else value


def _shown(value: Json) -> str:
    if isinstance(value, list):
        return " ".join(_shown(each) for each in value)
    return str(value.get("file", value.get("name", value)) if isinstance(value, dict) else value)
