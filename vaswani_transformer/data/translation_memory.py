"""Translation memories (TMX), read as a stream: memory does not grow with the file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from .text_files import LONGEST_RECORD, open_binary


_CHUNK = 1 << 16  # bytes
_DEEPEST = 100  # elements, each inside of the one before
_CODES = {"bpt", "ept", "it", "ph", "ut"}  # mark-up of the original document inside of a segment
_LANGUAGE = ("{http://www.w3.org/XML/1998/namespace}lang", "lang")  # of TMX 1.4, and of older versions


def read_memory(path: Path, languages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The segments of each translation unit that has both languages, without the mark-up inside.

    A language is matched by its own code or, failing that, by one with a region: "en" by "en-US". Of several variants
    of a unit the first counts.

    Raises:
        ValueError: The file is damaged, not well-formed, no TMX, or no unit has both languages.
    """
    found: dict[str, None] = {}
    has_pairs = False
    for unit in _units(path):
        variants: dict[str, str] = {}
        for variant in unit.iter("tuv"):
            code = next(filter(None, map(variant.get, _LANGUAGE)), "")
            if len(found) < 50:  # as many as a message can show
                found.setdefault(code[:20])
            if (segment := variant.find("seg")) is not None:
                variants.setdefault(_normal(code), _text(segment))
        source, target = (_segment(variants, _normal(language)) for language in languages)
        if source is not None and target is not None:
            has_pairs = True
            yield source, target
    if not has_pairs:
        wanted = " and ".join(map(repr, languages))
        raise ValueError(
            f"{path}: no translation unit has both {wanted}; the languages in it are {', '.join(found) or 'none'}; "
            f"name two of them"
        )


def _units(path: Path) -> Iterator[Element]:
    """The translation units of a file; the elements that hold them are emptied, so that memory does not grow."""
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    parents: list[Element] = []
    pending = 0  # bytes since the last unit
    try:
        with open_binary(path) as file:
            chunk = b" "
            while chunk:
                chunk = file.read(_CHUNK)
                parser.feed(chunk) if chunk else parser.close()  # until then, expat 2.6 keeps what follows long tokens
                pending += len(chunk)
                events = cast("Iterator[tuple[str, Element]]", parser.read_events())  # of these two kinds
                for event, element in events:
                    if event == "start":
                        element.tag = element.tag.rpartition("}")[2]  # without a namespace
                        parents.append(element)
                        _require_structure(path, parents)
                        continue
                    parents.pop()
                    if element.tag == "tu":
                        yield element
                        parents[-1].clear()
                        pending = 0
                if pending > LONGEST_RECORD:
                    raise ValueError(f"{path}: no translation unit ends within {LONGEST_RECORD:,} bytes; is it TMX?")
    except ParseError as error:
        reason = str(error).rpartition(": line ")[0]
        raise ValueError(f"{path}, line {error.position[0]}: not well-formed XML ({reason}); make it again") from None
    except (LookupError, ValueError) as error:  # our own, or of an encoding that expat does not know
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}; convert the file to UTF-8") from None


def _require_structure(path: Path, parents: list[Element]) -> None:
    if parents[0].tag != "tmx":
        raise ValueError(f"{path}: XML, but no TMX; its root is <{parents[0].tag[:80]}>, not <tmx>")
    if len(parents) > _DEEPEST:
        raise ValueError(f"{path}: more than {_DEEPEST} elements, each inside of another")


def _text(element: Element) -> str:
    """The text of a segment, without the mark-up of the original document."""
    parts = [element.text or ""]
    for child in element:
        parts += ["" if child.tag in _CODES else _text(child), child.tail or ""]
    return "".join(parts)


def _segment(variants: dict[str, str], language: str) -> str | None:
    """The segment of a unit in a language; None if it has none."""
    regional = (text for code, text in variants.items() if code.startswith(f"{language}-"))
    return variants.get(language, next(regional, None))


def _normal(code: str) -> str:
    return code.replace("_", "-").lower()
