"""Text files, plain or compressed: a file is recognised by its first bytes, then by its suffix."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO


# Suffix, first bytes, class.
_COMPRESSIONS = (
    (".gz", b"\x1f\x8b", gzip.GzipFile),
    (".bz2", b"BZh", bz2.BZ2File),
    (".xz", b"\xfd7zXZ\0", lzma.LZMAFile),
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
LONGEST_RECORD = 1 << 24  # bytes of a line, or of a translation unit: one without end would fill the memory

_CHUNK = 1 << 17  # bytes unpacked at a time
_UNPACKED = 200  # bytes that a byte of a file may become; text becomes 3 to 10
_ALWAYS = 1 << 24  # bytes that a file may become, however small it is
_ROW = 32  # bytes that a row costs beside its text


class Allowance:
    """How much text and how many rows a packed file may become, so that a small one fills no memory and no disk.

    Args:
        name: What messages call the file.
        size: Its size in bytes.
    """

    def __init__(self, name: Path, size: int) -> None:
        self.bytes = max(_ALWAYS, _UNPACKED * size)
        self._name, self._spent = name, 0

    def spend(self, size: int, rows: int = 1) -> None:
        """Raise a ValueError if the file has become too much, with this many bytes and rows more."""
        self._spent += size + _ROW * rows
        if self._spent > self.bytes:
            raise ValueError(
                f"{self._name}: its content is more than {_UNPACKED} times as large as the file; if that is right, "
                f"unpack it, and give it as plain text"
            )


class _Archive(io.RawIOBase):
    """The content of a compressed file; damage, and more than its allowance, are a ValueError."""

    def __init__(self, path: Path, suffix: str, opener: type[gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]) -> None:
        self._path, self._suffix, self._file = path, suffix, opener(path)
        self._allowance = Allowance(path, path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            content = self._file.read(len(buffer))
        except (OSError, zlib.error, lzma.LZMAError, EOFError) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile) and error.errno is not None:
                raise  # the system's own; that of a damaged .bz2 has no number
            raise ValueError(
                f"{self._path}: not a whole {self._suffix} file ({error}); fetch or make it again"
            ) from None
        self._allowance.spend(len(content), content.count(b"\n"))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_binary(path: Path) -> BinaryIO:
    """Open a plain, .gz, .bz2 or .xz file for reading bytes.

    Raises:
        ValueError: On reading: the archive is damaged, or unpacks to far more than text does.
    """
    with open(path, "rb") as file:
        start = file.read(8)
    # A file whose suffix promises an archive must be one: what a server sent instead is no corpus.
    by_content = [kind for kind in _COMPRESSIONS if start.startswith(kind[1])]
    for suffix, _, opener in by_content or [kind for kind in _COMPRESSIONS if path.suffix == kind[0]]:
        return io.BufferedReader(_Archive(path, suffix, opener), _CHUNK)
    return open(path, "rb")


def first_bytes(path: Path) -> bytes:
    """The beginning of a file, decompressed."""
    with open_binary(path) as file:
        return file.read(_START)


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
        ValueError: The file is no text, or a line is not UTF-8 or has more than 16 MiB.
    """
    number = 0
    try:
        for number, line in enumerate(iter(partial(file.readline, LONGEST_RECORD), b""), start=1):
            if number == 1:
                refuse_other_formats(line, name)
            if len(line) == LONGEST_RECORD:
                raise ValueError(f"{name}, line {number}: has more than {LONGEST_RECORD:,} bytes; is it text?")
            encoding = "utf-8-sig" if number == 1 else "utf-8"  # Windows marks the beginning of a file
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8, as by iconv -f LATIN1 -t "
            f"UTF-8"
        ) from None


def refuse_other_formats(start: bytes, name: Path) -> None:
    """Raise a ValueError if a file begins like one of a well-known kind that is no UTF-8 text."""
    for magic, kind in _NOT_TEXT.items():
        if start.startswith(magic):
            raise ValueError(f"{name}: {kind}")
    if start[257:262] == b"ustar":
        raise ValueError(f"{name}: a tar archive; unpack it, and name the files in it")
    even, odd = start[:8:2], start[1:8:2]
    if len(start) >= 8 and (even.count(0), odd.count(0)) in ((0, 4), (4, 0)):
        raise ValueError(f"{name}: {_UTF16}")
