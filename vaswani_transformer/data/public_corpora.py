"""The public corpora named in configurations: their files, sources and licences.

`public_corpora.json` is the table, and recipes/get_data.py gets the files. Digests cover the text of a file, because
the same text can be compressed in many ways. An archive that changes over time is split by digests of the held-out
pairs: `NAME.digests` lists the digests of the validation set, then of the test set, in line order.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..system.typed_json import from_json
from .text_files import Pair


_DIGEST_BYTES = 8


@dataclass(frozen=True)
class PublicFile:
    """A file of a public corpus.

    Attributes:
        sha256: Digest of its text, in hexadecimal.
        parts: Names, below the corpus's `url`, of the files whose concatenated texts it holds.
    """

    sha256: str
    parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PublicCorpus:
    """A public corpus.

    Attributes:
        title: Its contents.
        source: Its publisher, and the place of publication.
        licence: Its licence, or a note that none is stated.
        files: Its files by name.
        url: Address to which the names of parts are appended.
        missing: The reason why its files have no public source; None if they have one.
        archive: Address of a zip file of pairs that changes over time; None if each file has a source.
    """

    title: str
    source: str
    licence: str
    files: dict[str, PublicFile]
    url: str = ""
    missing: str | None = None
    archive: str | None = None


PUBLIC_CORPORA: dict[str, PublicCorpus] = from_json(
    dict[str, PublicCorpus], json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
)


def split_pairs(name: str, pairs: Sequence[Pair]) -> tuple[dict[str, list[Pair]], dict[str, list[int]]]:
    """Split the pairs of an archive as the corpus `name`; train shares no sentence with the others, on either side.

    Returns:
        Pairs of train, valid and test; and the lines of the pinned valid and test, from 1, that the archive lacks.

    Raises:
        ValueError: The archive lacks most of them.
    """
    digests = Path(__file__).with_name(f"{name}.digests").read_bytes()
    pinned = [digests[start : start + _DIGEST_BYTES] for start in range(0, len(digests), _DIGEST_BYTES)]
    half, wanted = len(pinned) // 2, set(pinned)
    found: dict[bytes, Pair] = {}
    for pair in pairs:
        if (digest := pair_digest(pair)) in wanted:
            found[digest] = max(pair, found.get(digest, pair))  # if two differ in white space, the pinned one
    if len(found) < half:
        raise ValueError(f"has {len(found)} of the {len(pinned)} held-out pairs")
    held_out = [set(side) for side in zip(*found.values(), strict=True)]
    splits = {"train": [pair for pair in pairs if pair[0] not in held_out[0] and pair[1] not in held_out[1]]}
    gone = {}
    for split, expected in (("valid", pinned[:half]), ("test", pinned[half:])):
        splits[split] = [found[digest] for digest in expected if digest in found]
        gone[split] = [line for line, digest in enumerate(expected, 1) if digest not in found]
    return splits, gone


def pair_digest(pair: Pair) -> bytes:
    """Digest of a pair's text, regardless of white space, which Tatoeba may normalize."""
    text = "\t".join(" ".join(sentence.split()) for sentence in pair)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
