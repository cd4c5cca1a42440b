"""Text files, plain or compressed: a file is recognised by its first bytes, then by its suffix."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


# First bytes and class, by suffix.
_COMPRESSIONS = {
    ".gz": (b"\x1f\x8b", gzip.GzipFile),
    ".bz2": (b"BZh", bz2.BZ2File),
    ".xz": (b"\xfd7zXZ\0", lzma.LZMAFile),
}
COMPRESSED = tuple(_COMPRESSIONS)
_START = 4096  # bytes by which the content of a file is recognised


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, .gz, .bz2 or .xz file for reading bytes.

    Raises:
        ValueError: On reading: the archive is damaged.
    """
    with open(path, "rb") as file:
        start = file.read(8)
    # A file whose suffix promises an archive must be one: what a server sent instead is no corpus.
    suffix = next((each for each in COMPRESSED if start.startswith(_COMPRESSIONS[each][0])), path.suffix)
    if suffix not in _COMPRESSIONS:
        with open(path, "rb") as file:
            yield file
        return
    try:
        with _COMPRESSIONS[suffix][1](path) as archive:
            yield archive
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise ValueError(f"{path}: not a whole {suffix} file ({error}); fetch or make it again") from None


def first_bytes(path: Path) -> bytes:
    """The beginning of a file, decompressed."""
    with open_binary(path) as file:
        return file.read(_START)


def read_lines(path: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, as `decode_lines` splits them."""
    with open_binary(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: BinaryIO, name: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, split at line feeds only, as every tool that aligned them counts lines.

    Args:
        file: Read as it goes.
        name: What messages call it.

    Raises:
        ValueError: A line is not UTF-8.
    """
    for number, line in enumerate(file, start=1):
        encoding = "utf-8-sig" if number == 1 else "utf-8"  # Windows marks the beginning of a file
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8, as by iconv -f LATIN1 "
                f"-t UTF-8"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")
