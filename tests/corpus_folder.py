"""Small corpora in every format that can be read, and their sentence pairs or errors."""

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
import pytest
from pyarrow import parquet

from vaswani_transformer.data.corpora import load_parallel_corpus


# Whatever str.splitlines or universal newlines would split at, and what stripping would lose.
PAIRS = [
    ("a\u2028b\u2029c", "eins"),
    ("two\x85x\x0by\x0cz", "z\rwei"),
    ("", "drei"),
    ("\x1c \x1d", ""),
    ("  five ", "\tfünf\u3000"),
    ("six", "sechs\ufeff\x00"),
]
COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}


def load(*names: str | Path, languages: tuple[str, str] = ("en", "de"), **kwargs) -> list[tuple[str, str]]:
    """The sentence pairs of a corpus."""
    rows = load_parallel_corpus(names, *languages, **kwargs)["translation"][:]
    return [(row[languages[0]], row[languages[1]]) for row in rows]


def error_of(*names: str | Path, error_class: type[Exception] = ValueError, **kwargs) -> str:
    """The message of the error that loading a corpus raises, which must be one line."""
    with pytest.raises(error_class) as error:
        load(*names, **kwargs)
    assert error.type is error_class
    assert "\n" not in str(error.value)
    return str(error.value)


class Folder:
    """Writes corpora into a temporary folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def raw(self, name: str, content: bytes) -> str:
        path = self.path / name
        path.write_bytes(content)
        return str(path)

    def lines(self, name: str, lines: list[str], end: str = "\n") -> str:
        compress = COMPRESS.get(Path(name).suffix.lower(), bytes)
        return self.raw(name, compress("".join(line + end for line in lines).encode("utf-8")))

    def pair(self, suffixes: tuple[str, str] = ("", ""), end: str = "\n") -> list[str]:
        sides = zip(("en", "de"), suffixes, zip(*PAIRS, strict=True), strict=True)
        return [self.lines(f"corpus.{language}{suffix}", list(side), end) for language, suffix, side in sides]

    def json(self, name: str, rows: list) -> str:
        return self.lines(name, [json.dumps(row, ensure_ascii=False) for row in rows])

    def parquet(self, name: str, rows: list[dict]) -> str:
        parquet.write_table(pa.Table.from_pylist(rows), self.path / name)
        return str(self.path / name)

    def csv(self, name: str, rows: list) -> str:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        return self.lines(name, [text.getvalue()], end="")

    def tmx(self, name: str, units: list[dict[str, str]], encoding: str = "utf-8") -> str:
        """A translation memory of units of texts by language, which must be well-formed where they have no mark-up."""
        variants = (
            "".join(f'<tuv xml:lang="{language}"><seg>{escape(text)}</seg></tuv>' for language, text in unit.items())
            for unit in units
        )
        body = "\n".join(f"<tu>{variant}</tu>" for variant in variants)
        text = (
            f'<?xml version="1.0" encoding="{encoding}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
            f'<tmx version="1.4"><header srclang="en"/><body>\n{body}\n</body></tmx>\n'
        )
        return self.raw(name, COMPRESS.get(Path(name).suffix.lower(), bytes)(text.encode(encoding)))
