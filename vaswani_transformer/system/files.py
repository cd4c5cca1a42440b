"""Atomic writes and locks; no other module renames or locks files."""

import errno
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from .messages import one_line


logger = logging.getLogger(__name__)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def atomic_write(path: str | Path, content: str | Iterable[bytes]) -> None:
    """Write a file of text or chunks of bytes atomically and durably, replacing an earlier one.

    If `path` is a symbolic link, the file that it points to is replaced. A device or a pipe is written as it is.
    """
    path, chunks = Path(path), [content.encode()] if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        with open(path, "wb") as device:
            device.writelines(chunks)
        return
    path = path.resolve()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.writelines(chunks)
        if path.exists():
            shutil.copymode(path, temporary)
        publish(temporary, path)
    except OSError as error:
        if error.errno and not error.filename:  # such as the error of a full disk
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path, option: str = "output", replace: bool = False) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `path` at the end and is deleted after an error.

    The lock of `path` is held meanwhile. The remains of a killed process, `.NAME.incomplete`, are deleted.

    Args:
        option: The user's name for `path`, with which messages begin.
        replace: Whether to replace an earlier directory.

    Raises:
        OSError: `path` exists, at the beginning or at the end, and `replace` is not set.
        ValueError: Another process is making `path`.
    """
    path = Path(path).absolute()  # "." has no name
    staged, aside = (path.with_name(f".{path.name}.{state}") for state in ("incomplete", "replaced"))
    with locked(path, option):
        if aside.exists() and not path.exists():  # a process was killed in `publish`
            os.replace(aside, path)
        if not replace:
            require_new_directory(option, path)
        shutil.rmtree(staged, ignore_errors=True)
        try:
            staged.mkdir()
            yield staged
            publish(staged, path, replace)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def publish(staged: Path, path: Path, replace: bool = True) -> None:
    """Move a complete file or directory to its place, durably.

    An earlier file is replaced atomically. An earlier directory is first moved aside, and back if an error occurs;
    without `replace` it stays, and an OSError is raised unless it is empty.
    """
    for each in (*staged.rglob("*"), staged):
        _sync(each)
    aside = path.with_name(f".{path.name}.replaced")
    try:
        if replace and staged.is_dir() and path.is_dir():  # a file never replaces a directory
            shutil.rmtree(aside, ignore_errors=True)  # left by a killed process
            os.replace(path, aside)
        os.replace(staged, path)
    finally:
        if not path.exists() and aside.exists():
            os.replace(aside, path)
    shutil.rmtree(aside, ignore_errors=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def atomic_remove(directory: Path, temporary_folder: Path) -> None:
    """Delete a directory so that a kill never leaves part of it at its place: move it away, then delete it."""
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
        # `datasets` closes its file again after a failed write, which raises another error.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        # torch reports a full disk as a plain RuntimeError, tokenizers as a plain Exception; subclasses differ.
        if not isinstance(cause, (OSError, SafetensorError)) and type(cause) not in (RuntimeError, Exception):
            raise
        hint = " (is the disk full?)" if isinstance(cause, RuntimeError) else ""
        raise OSError(f"{what}: {one_line(cause)}{hint}") from error


@contextmanager
def locked(path: Path, option: str = "output_dir", wait: bool = False) -> Iterator[None]:
    """Lock a file or directory, so that only one command writes it.

    The lock is a file next to it, `.NAME.lock`, which is removed at the end. The system releases it however the process
    ends.

    Args:
        path: The file or directory; it need not exist, and may be replaced or removed.
        option: The user's name for it, with which messages begin.
        wait: Whether to wait while another process holds the lock.

    Raises:
        ValueError: Another process holds it.
    """
    path = path.absolute()  # "." has no name
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise ValueError(f"{option}: another process is at work in {path}; wait for it, or end it") from None
    except OSError as error:  # NFS without its lock daemon
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # filelock has a substitute for ENOSYS
            raise
        logger.warning(f"{option}: {path} cannot be locked; start no second command that writes there: {error}")
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # a process that has just opened it notices
        lock.release()


def require_new_directory(option: str, path: str | Path) -> None:
    """Raise a FileExistsError if a directory cannot be made, because `path` exists."""
    if Path(path).exists():
        raise FileExistsError(f"{option}: {path} exists already; name another directory, or remove it")


def require_new_file(name: str, path: str | Path, overwrite: bool) -> None:
    """Raise a ValueError unless a file can be written: it is new or may be replaced, and its directory exists."""
    if Path(path).exists() and not overwrite:
        raise ValueError(f"{name}: {path} exists already; name another file, or replace it with --overwrite")
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"{name}: there is no directory {Path(path).parent}; make it")


def read_json(path: str | Path, place: str | None = None) -> dict[str, Json]:
    """Read a file that holds a JSON object; errors call it `place`, by default the whole path.

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
