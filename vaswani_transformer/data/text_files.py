"""Text files, plain or compressed according to their suffix."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa


Pair = tuple[str, str]  # a sentence and its translation


def _open_zstd(path: Path, mode: str) -> BinaryIO:
    return io.BufferedReader(pa.CompressedInputStream(open(path, mode), "zstd"))


_ARCHIVES: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}
COMPRESSED = tuple(_ARCHIVES)


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, .gz, .bz2, .xz or .zst file for reading bytes.

    Raises:
        ValueError: The file is a .zip; or, while reading, the archive is damaged.
    """
    suffix = path.suffix.lower()
    if suffix == ".zip":
        raise ValueError(f"{path}: is an archive, which may hold several files; unzip it, and name a file from it")
    with _ARCHIVES.get(suffix, open)(path, "rb") as file:
        try:
            yield file
        except (zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # an error of the disk; a damaged archive has no number
                raise
            raise ValueError(f"{path}: not a whole {path.suffix} file ({error}); fetch or make it again") from None


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file, split as by `decode_lines`."""
    with open_binary(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: BinaryIO, name: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, split at line feeds only, as alignment tools count lines.

    In a file without line feeds, as of old Macintoshes, lines end at carriage returns. A byte order mark at the start
    of a line is removed: `cat` leaves the mark of each file. The file is read lazily; messages call it `name`.
    """
    first = file.readline()
    lines = chain([first], file) if first.endswith(b"\n") else first.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode().lstrip("\ufeff")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file, as by iconv -f LATIN1 -t UTF-8"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")
