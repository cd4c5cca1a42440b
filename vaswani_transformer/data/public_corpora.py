"""The public corpora that configurations name: their files, sources and licences.

`public_corpora.json` is the table, and recipes/get_data.py gets the files. Digests are of the text in a file, because
the same text can be compressed in many ways.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


_TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PUBLIC_CORPORA = tuple(_TABLE)


@dataclass(frozen=True)
class PublicFile:
    """A file of a public corpus.

    Attributes:
        sha256: Digest of its text, in hexadecimal.
        urls: Files whose texts it joins; none if it has no public source.
    """

    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class PublicCorpus:
    """A public corpus.

    Attributes:
        title: What it holds.
        source: Who published it, and where.
        licence: Its licence, or that none is stated.
        other_names: Names that its folder may have in a copy.
        files: By name.
        missing: Why its files have no public source; None if they have one.
    """

    title: str
    source: str
    licence: str
    other_names: tuple[str, ...]
    files: dict[str, PublicFile]
    missing: str | None


def public_corpus(name: str) -> PublicCorpus:
    """The entry of a corpus in the table; `name` is one of `PUBLIC_CORPORA`."""
    entry = _TABLE[name]
    files = {
        file: PublicFile(each["sha256"], tuple(entry["url"] + part for part in each.get("parts", ())))
        for file, each in entry["files"].items()
    }
    texts = {key: entry[key] for key in ("title", "source", "licence")}
    return PublicCorpus(**texts, other_names=tuple(entry["other_names"]), files=files, missing=entry.get("missing"))
