"""Translation memories (TMX), read as a stream: memory does not grow with the file.

The parser is expat itself, beneath `xml.etree`: only there can entities be refused, and errors have their line.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.parsers import expat

from .text_files import open_binary


_CHUNK = 1 << 16  # bytes
_LONGEST_SEGMENT = 1 << 24  # characters
_LONGEST_TOKEN = 1 << 20  # bytes of a tag or comment: expat scans it from its beginning at every chunk
_DEEPEST = 100  # elements, each inside of the one before
_CODES = {"bpt", "ept", "it", "ph", "ut"}  # mark-up of the original document inside of a segment


def read_memory(path: Path, languages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The segments of each translation unit that has both languages, without the mark-up inside.

    A language is matched by its own code or, failing that, by one with a region: "en" by "en-US". Of several variants
    of a unit the first counts.

    Raises:
        ValueError: The file is damaged, not well-formed, no TMX, declares entities, or no unit has both languages.
    """
    units = _Units(path, languages)
    with open_binary(path) as file:
        try:
            while chunk := file.read(_CHUNK):
                units.feed(chunk)
                yield from units.take()
            units.parser.Parse(b"", True)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise ValueError(f"{path}, line {error.lineno}: not well-formed XML ({reason}); make it again") from None
        except (LookupError, ValueError) as error:  # our own, or of an encoding that expat does not know
            if str(error).startswith(str(path)):
                raise
            raise ValueError(f"{path}: {error}; convert the file to UTF-8") from None
    if not units.has_pairs:
        wanted, found = " and ".join(map(repr, languages)), ", ".join(units.languages) or "none"
        raise ValueError(
            f"{path}: no translation unit has both {wanted}; the languages in it are {found}; name two of them"
        )


class _Units:
    """Translation units, collected while the parser goes through a file.

    Args:
        path: What messages call the file.
        languages: Codes of the source and the target language.
    """

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        self.languages: dict[str, None] = {}
        self.has_pairs = False
        self._path, self._wanted = path, [_normal(language) for language in languages]
        self._pairs: list[tuple[str, str]] = []
        self._variants: dict[str, str] = {}
        self._language = ""
        self._text: list[str] | None = None  # of the segment that is open
        self._codes = self._depth = self._length = self._bytes = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._refuse_entity
        self.parser.SkippedEntityHandler = self._refuse_entity  # one of the DTD, which is not fetched

    def feed(self, chunk: bytes) -> None:
        """Parse the next bytes of the file."""
        self.parser.Parse(chunk)
        self._bytes += len(chunk)
        if self._bytes - max(0, self.parser.CurrentByteIndex) > _LONGEST_TOKEN:
            line = self.parser.CurrentLineNumber
            raise ValueError(f"{self._path}, line {line}: a tag or comment has more than {_LONGEST_TOKEN:,} bytes")

    def take(self) -> list[tuple[str, str]]:
        """The pairs since the last call."""
        pairs, self._pairs = self._pairs, []
        return pairs

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name != "tmx":
            raise ValueError(f"{self._path}: XML, but no TMX; its root is <{name[:80]}>, not <tmx>")
        if self._depth > _DEEPEST:
            line = self.parser.CurrentLineNumber
            raise ValueError(f"{self._path}, line {line}: more than {_DEEPEST} elements, each inside of another")
        if name == "tu":
            self._variants = {}
        elif name == "tuv":
            code = attributes.get("xml:lang", attributes.get("lang", ""))
            self._language = _normal(code)
            if len(self.languages) < 50:  # as many as a message can show
                self.languages.setdefault(code[:20])
        elif name == "seg":
            self._text, self._codes, self._length = [], 0, 0
        elif self._text is not None and name in _CODES:
            self._codes += 1

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "seg" and self._text is not None:
            self._variants.setdefault(self._language, "".join(self._text))
            self._text = None
        elif self._text is not None and name in _CODES:
            self._codes -= 1
        elif name == "tu":
            source, target = map(self._segment, self._wanted)
            if source is not None and target is not None:
                self._pairs.append((source, target))
                self.has_pairs = True

    def _segment(self, language: str) -> str | None:
        """The segment of the open unit in a language; None if it has none."""
        regional = (text for code, text in self._variants.items() if code.startswith(f"{language}-"))
        return self._variants.get(language, next(regional, None))

    def _characters(self, text: str) -> None:
        if self._text is None or self._codes:
            return
        self._length += len(text)
        if self._length > _LONGEST_SEGMENT:
            line = self.parser.CurrentLineNumber
            raise ValueError(f"{self._path}, line {line}: a segment has more than {_LONGEST_SEGMENT:,} characters")
        self._text.append(text)

    def _refuse_entity(self, name: str, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise ValueError(
            f"{self._path}, line {line}: the entity {name[:80]!r} is not expanded; write the character itself"
        )


def _normal(code: str) -> str:
    return code.replace("_", "-").lower()
