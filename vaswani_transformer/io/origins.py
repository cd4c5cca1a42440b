"""Origins: what a directory was made from, recorded in it and compared before it is used again.

An origin has an entry for each option, and for each input: {"file": ..., "sha256": ...}, or {"name": ...} on the Hub.
"""

from collections.abc import Mapping
from pathlib import Path

from .digests import file_digest, matching_files_digest
from .files import Json
from .manifests import TOKENIZER_FILES


def identify(path: str | Path) -> Json:
    """Describe an input file for a record, by its place and digest."""
    path = Path(path)
    return {"file": str(path.absolute()), "sha256": file_digest(path)}


def identify_tokenizer(name: str) -> Json:
    """Describe a saved tokenizer for a record: its files by their common digest, one of the Hub by its name."""
    if (digest := matching_files_digest(Path(name), TOKENIZER_FILES)) is not None:
        return {"file": str(Path(name).absolute()), "sha256": digest}
    return {"name": name}


def require_same_origin(before: Mapping[str, Json], now: Mapping[str, Json], what: str, advice: str) -> None:
    """Compare the recorded origin of a directory with that of the command that wants to use it.

    Entries that only one of them has do not count. A file is compared by its content, and shown by its name.

    Raises:
        ValueError: An entry differs: "{what} width (1.0 then, 0.5 now); {advice}".
    """
    different = [
        f"{name} ({_text(before[name])} then, {_text(value)} now)"
        for name, value in now.items()
        if name in before and without_places(before[name]) != without_places(value)
    ]
    if different:
        raise ValueError(f"{what} {', '.join(different)}; {advice}")


def without_places(value: Json) -> Json:
    """What is compared: an origin, or an entry of it, with the digest in place of an input file."""
    if isinstance(value, list):
        return [without_places(each) for each in value]
    if isinstance(value, dict) and "sha256" not in value:
        return {name: without_places(each) for name, each in value.items()}
    return value["sha256"] if isinstance(value, dict) else value


def _text(value: Json) -> str:
    """What a message shows: names of input files, and of corpora and tokenizers of the Hub."""
    if isinstance(value, list):
        return " ".join(_text(each) for each in value)
    if isinstance(value, dict) and "name" in value:
        return " ".join(str(value[key]) for key in ("name", "config") if value.get(key) is not None)
    return str(value.get("file", value) if isinstance(value, dict) else value)
