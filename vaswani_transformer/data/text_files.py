"""Text files, plain or compressed: a file is recognised by its first bytes, then by its suffix."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast


# Suffix, first bytes, how to open.
_COMPRESSIONS = (
    (".gz", b"\x1f\x8b", gzip.open),
    (".bz2", b"BZh", bz2.open),
    (".xz", b"\xfd7zXZ\0", lzma.open),
)
COMPRESSED = tuple(suffix for suffix, *_ in _COMPRESSIONS)
PARQUET = b"PAR1"
_UTF16 = "UTF-16; convert it to UTF-8, as by iconv -f UTF-16 -t UTF-8"
_NOT_TEXT = {
    PARQUET: "a Parquet file, not text; write its column as text",
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; decompress it, or use .gz, .bz2 or .xz",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    b"%PDF-": "a PDF file; extract its text",
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
}
_START = 4096  # bytes by which the content of a file is recognised
_LONGEST_LINE = 1 << 26  # bytes; a small archive may unpack to more than the memory holds

# What a damaged archive makes its reader raise. That of bz2 raises OSError, which `damaged` tells from other faults.
ARCHIVE_ERRORS = (OSError, zlib.error, lzma.LZMAError, EOFError)


def open_binary(path: Path) -> BinaryIO:
    """Open a plain, .gz, .bz2 or .xz file for reading bytes."""
    with open(path, "rb") as file:
        start = file.read(8)
    by_content = [opener for _, magic, opener in _COMPRESSIONS if start.startswith(magic)]
    # A file whose suffix promises an archive must be one: what a server sent instead is no corpus.
    by_suffix = [opener for suffix, _, opener in _COMPRESSIONS if path.suffix == suffix]
    return cast(BinaryIO, next(iter([*by_content, *by_suffix, open]))(path, "rb"))


def first_bytes(path: Path) -> bytes:
    """The beginning of a file, decompressed; b"" if it is damaged, which reading it will report."""
    with open_binary(path) as file:
        try:
            return file.read(_START)
        except ARCHIVE_ERRORS as error:
            if isinstance(damaged(file, path, "", error), OSError):
                raise
            return b""


def damaged(file: BinaryIO, name: Path, place: str, error: BaseException) -> Exception:
    """The error to raise for one of `ARCHIVE_ERRORS`: that the archive is damaged, or the system's own."""
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile) and error.errno is not None:
        return error
    classes = {gzip.GzipFile: ".gz", bz2.BZ2File: ".bz2", lzma.LZMAFile: ".xz"}
    suffix = classes.get(type(file), name.suffix)  # type: ignore[call-overload]
    return ValueError(f"{name}{place}: not a whole {suffix} file ({error}); fetch or make it again")


def read_lines(path: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, as `decode_lines` finds them."""
    with open_binary(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: BinaryIO, name: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, split at line feeds only, as every tool that aligned them counts lines.

    Args:
        file: Read as it goes.
        name: What messages call it.

    Raises:
        ValueError: The file is no text, a line is not UTF-8 or has more than 64 MiB, or the file is a damaged archive.
    """
    number = 0
    try:
        for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), b""), start=1):
            if number == 1:
                require_text(line, name)
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"{name}, line {number}: has more than {_LONGEST_LINE:,} bytes; is it text?")
            encoding = "utf-8-sig" if number == 1 else "utf-8"  # Windows marks the beginning of a file
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8, as by iconv -f LATIN1 -t "
            f"UTF-8"
        ) from None
    except ARCHIVE_ERRORS as error:
        raise damaged(file, name, f", after line {number}", error) from None


def require_text(start: bytes, name: Path) -> None:
    """Raise a ValueError if a file begins like one of a well-known kind that is no UTF-8 text."""
    for magic, kind in _NOT_TEXT.items():
        if start.startswith(magic):
            raise ValueError(f"{name}: {kind}")
    if start[257:262] == b"ustar":
        raise ValueError(f"{name}: a tar archive; unpack it, and name the files in it")
    even, odd = start[:8:2], start[1:8:2]
    if len(start) >= 8 and (even.count(0), odd.count(0)) in ((0, 4), (4, 0)):
        raise ValueError(f"{name}: {_UTF16}")
