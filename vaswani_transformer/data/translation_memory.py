"""Translation memories (TMX), read as a stream: memory does not grow with the file."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

import regex
from defusedxml.ElementTree import iterparse

from ..model.languages_vaswani import UNSPACED_CHARACTER, standard_code
from ..system.messages import one_line
from .text_files import Pair, open_binary


_CODE = "\ufffc"  # replaces a standalone code, like a line break, which separates words
# Mark-up of the original document inside a segment, and its text.
_CODES = {"bpt": "", "ept": "", "it": "", "ph": _CODE, "ut": _CODE}
_UNSPACED = UNSPACED_CHARACTER.pattern
_BETWEEN_WORDS = regex.compile(rf"(?<=[\w.,:;!?])(?<!{_UNSPACED}){_CODE}+(?!{_UNSPACED})(?=\w)")
_LINE_BREAK = re.compile(r"\s*\n\s*")  # with the indentation of the XML
_LANGUAGE = ("{http://www.w3.org/XML/1998/namespace}lang", "lang")  # in TMX 1.4, and in older versions


def read_memory(path: Path, languages: Sequence[str]) -> Iterator[Pair]:
    """The segments of each translation unit that has both languages, without the mark-up inside.

    A language is matched by its code or, failing that, by one with a region: "en" by "en-US". If a unit has several
    variants in a language, the first counts.
    """
    codes: set[str] = set()
    has_pairs = False
    for unit in _units(path):
        variants: dict[str, str] = {}
        for variant in unit.iter("tuv"):
            code = standard_code(next(filter(None, map(variant.get, _LANGUAGE)), ""))
            if (segment := variant.find("seg")) is not None:
                text = _LINE_BREAK.sub(" ", _text(segment))
                variants.setdefault(code, _BETWEEN_WORDS.sub(" ", text).replace(_CODE, ""))
        codes |= variants.keys()
        source, target = (_segment(variants, standard_code(language)) for language in languages)
        if source is not None and target is not None:
            has_pairs = True
            yield source, target
    if not has_pairs:
        raise ValueError(
            f"{path}: no translation unit has both {' and '.join(map(repr, languages))}; the languages in it are "
            f"{', '.join(sorted(codes)) or 'none'}; name two of them"
        )


def _units(path: Path) -> Iterator[Element]:
    """The translation units of a file; their parent element is emptied, so that memory does not grow."""
    with open_binary(path) as file:
        try:
            events = iterparse(file, events=("start", "end"))
            _, body = next(events)
            for event, element in events:
                element.tag = element.tag.rpartition("}")[2]  # without a namespace
                if event == "start" and element.tag == "body":
                    body = element
                elif event == "end" and element.tag == "tu":
                    yield element
                    body.clear()
        except (ParseError, LookupError, ValueError) as error:  # of the syntax, the encoding, or forbidden entities
            raise ValueError(f"{path}: not XML ({one_line(error)}); export it again") from None


def _text(element: Element) -> str:
    """The text of a segment, without the mark-up of the original document; `_CODE` replaces standalone codes."""
    parts = [element.text or ""]
    for child in element:
        parts += [_CODES[child.tag] if child.tag in _CODES else _text(child), child.tail or ""]
    return "".join(parts)


def _segment(variants: dict[str, str], language: str) -> str | None:
    """The segment of a unit in a language; None without one."""
    regional = (text for code, text in variants.items() if code.startswith(f"{language}-"))
    return variants.get(language, next(regional, None))
