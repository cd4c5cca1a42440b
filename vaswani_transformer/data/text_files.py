"""Text files, plain or compressed according to their suffix."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


_ARCHIVES: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSED = tuple(_ARCHIVES)


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, .gz, .bz2 or .xz file for reading bytes; reading a damaged archive raises a ValueError."""
    with _ARCHIVES.get(path.suffix, open)(path, "rb") as file:
        try:
            yield file
        except (zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # an error of the disk; a damaged archive has no number
                raise
            raise ValueError(f"{path}: not a whole {path.suffix} file ({error}); fetch or make it again") from None


def read_lines(path: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, as `decode_lines` splits them."""
    with open_binary(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: BinaryIO, name: Path) -> Iterator[str]:
    """Sentences of a UTF-8 file, split at line feeds only, as alignment tools count lines.

    The file is read lazily; messages call it `name`.
    """
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # a file from Windows may begin with a mark
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file, as by iconv -f LATIN1 -t UTF-8"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")
