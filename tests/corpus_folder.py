"""Small corpora in every format that can be read."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet


# Whatever str.splitlines or universal newlines would split at, and what stripping would lose.
PAIRS = [
    ("a\u2028b\u2029c", "eins"),
    ("two\x85x\x0by\x0cz", "z\rwei"),
    ("", "drei"),
    ("\x1c \x1d", ""),
    ("  five ", "\tfünf\u3000"),
    ("six", "\ufeffsechs\x00"),
]
ROWS = [{"translation": {"en": english, "de": german}} for english, german in PAIRS]


class Folder:
    """Writes corpora into a temporary folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def raw(self, name: str, content: bytes) -> str:
        path = self.path / name
        path.write_bytes(content)
        return str(path)

    def lines(self, name: str, lines: list[str], end: str = "\n") -> str:
        compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
        return self.raw(name, compress("".join(line + end for line in lines).encode("utf-8")))

    def pair(self, suffixes: tuple[str, str] = ("", ""), end: str = "\n") -> list[str]:
        sides = zip(("en", "de"), suffixes, zip(*PAIRS, strict=True), strict=True)
        return [self.lines(f"corpus.{language}{suffix}", list(side), end) for language, suffix, side in sides]

    def json(self, name: str, rows: list) -> str:
        return self.lines(name, [json.dumps(row, ensure_ascii=False) for row in rows])

    def parquet(self, name: str, rows: list[dict]) -> str:
        parquet.write_table(pa.Table.from_pylist(rows), self.path / name)
        return str(self.path / name)
