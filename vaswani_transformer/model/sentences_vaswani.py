"""The sentences of a text, and the text of their translations."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .languages_vaswani import HAN, HAN_LANGUAGES, Directions, base_language, with_tag


# A model's code may run without this package, which requires it.
try:
    import sentencex
except ImportError:
    sentencex = None


# Where a sentence ends without a space after it, as "\n". It ends with a mark that means nothing else (in Chinese and
# Japanese, Hindi, Burmese, Khmer, Tibetan, Amharic, Urdu, Arabic, Armenian), or with an ASCII one after a Chinese or
# Japanese character. It continues with closing quotes, in Japanese after a quotation, in Khmer with "etc.".
_MARKS = "\u3002\uff61\uff01\uff1f\u0964\u0965\u104b\u17d4\u17d5\u0f0d\u0f0e\u1362\u06d4\u061f\u0589"
_CLOSING = ")\u2019\u201d\u300d\u300f\uff09\uff63"
_QUOTED = "\u3068\u3063\u306e\u3092\u306b\u3001\uff0c"  # to, t(te), no, wo, ni, commas
_END = re.compile(
    rf"(?:[{_MARKS}]|(?<=[{HAN}])(?:[.\uff0e]|[?!]+))"
    rf"(?:[{_CLOSING}\"']+\n(?![{_QUOTED}])|\n)"
    rf"(?![{_CLOSING}]|\u179b\u17d4)"
)
# An ASCII digit after such a mark, but not the number of a verse, which has one on both sides.
_DIGIT_AT_START = re.compile(rf"(?<=[{_MARKS}])[0-9](?![0-9]*\s*[\u0964\u0965])")
# A period that does not end a sentence: any in Thai, and those after titles and units in Hindi, Bengali and Arabic,
# which sentencex 1.0.32 does not know.
_ABBREVIATION = re.compile(
    r"[\u0e00-\u0e7f]\.$|(?<![^\s(])(?:डॉ|डा|प्रो|श्री|पं|मो|सं|स्व|रु|कि|मी|ড|ডা|প্রো|মো|মি|কি|খ্রি|د)\.$"
)

_PIECE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
# Characters that sentencex 1.0.32 does not know: marks of Khmer and Tibetan, half-width quotes; and white space of
# several bytes, since it fails on "Z\u00a0.".
_AS_KNOWN: dict[int, str] = {code: " " for code in range(128, 0x3001) if chr(code).isspace()}
_AS_KNOWN |= zip(map(ord, "\u17d4\u17d5\u0f0d\u0f0e\uff62\uff63"), "\u3002\u3002\u3002\u3002\u300c\u300d", strict=True)


def split_sentences(text: str, language: str | None) -> list[str]:
    """Divide text into sentences and the white space between them. A line feed ends a sentence.

    Thai, which has no mark for the end of a sentence, is divided after question and exclamation marks alone.

    Args:
        text: Any text.
        language: Its code; None for the rules of English.

    Returns:
        An odd number of strings that concatenate to the text: white space, possibly empty, at even indices, sentences
        at odd ones.
    """
    pieces = [""]
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        known = _DIGIT_AT_START.sub("\uff10", line.translate(_AS_KNOWN))
        lengths = map(len, sentencex.segment(base_language(language), known))
        first = len(pieces)  # of the line
        for start, end in pairwise([*accumulate(lengths, initial=0), len(line)]):
            before, sentence, after = _PIECE.fullmatch(line[start:end]).groups()
            pieces[-1] += before
            if sentence and len(pieces) > first and _continues(pieces[-2], pieces[-1], sentence):
                pieces[-2:] = [pieces[-2] + pieces[-1] + sentence, after]
            elif sentence:
                pieces += [sentence, after]
    return pieces


def _continues(before: str, space: str, piece: str) -> bool:
    """Whether a piece belongs to the sentence before, such as "?" after a space, or ".-C." in "av. J.-C."."""
    if not any(map(str.isalnum, piece)):
        return True
    if space:
        return _ABBREVIATION.search(before[-20:]) is not None
    return not _END.search(f"{before[-20:]}\n{piece[:2]}")


@dataclass(frozen=True)
class Paragraph:
    """A text divided into sentences.

    Attributes:
        spaces: The white space, possibly empty, before, between and after the sentences.
        sentences: The sentences, each with the text's tag if there is one. Blank text has one empty sentence.
        target: Code of the language of the translations; None if unknown.
    """

    spaces: list[str]
    sentences: list[str]
    target: str | None

    @classmethod
    def split(cls, directions: Directions, text: str) -> "Paragraph":
        """Divide a text by the rules of the source language.

        Raises:
            ImportError: The sentence splitter is not installed.
        """
        if sentencex is None:
            raise ImportError("split_sentences: run `pip install sentencex`, or set this to False")
        tag, text = directions.split(text)
        source, target = directions.languages(tag)
        pieces = split_sentences(text, source) if text.strip() else [text, "", ""]
        return cls(pieces[::2], [with_tag(sentence, tag) for sentence in pieces[1::2]], target)

    def join(self, translations: Sequence[str]) -> str:
        """Concatenate translations of the sentences, with the white space between the sentences.

        White space before the first and after the last sentence is dropped. If two sentences have none between them,
        their translations get a space. In Chinese and Japanese, translations in a line have none between them.
        """
        between = self.spaces[1:-1]
        if base_language(self.target) in HAN_LANGUAGES:
            before = [space if "\n" in space else "" for space in between]
        else:
            before = [space or " " for space in between]
        return "".join(map("".join, zip(["", *before], translations, strict=True)))


def split_paragraphs(
    directions: Directions, texts: Sequence[str], obstacles: Sequence[str], warn: Callable[[str], None]
) -> list[Paragraph] | None:
    """Divide texts into sentences; return None if each text is to be translated as one.

    Args:
        directions: Directions of the model.
        texts: Texts of one sentence or several.
        obstacles: Names of the options in use that apply to a single sentence; with any, a text is translated as one.
        warn: Called with a warning that parts may be missing, also if the splitter is not installed.
    """
    try:
        paragraphs = [Paragraph.split(directions, text) for text in texts]
    except ImportError as error:
        warn(f"{error}; until then, each text is translated as one sentence, and parts may be missing")
        return None
    if not obstacles:
        return paragraphs
    if any(len(paragraph.sentences) > 1 for paragraph in paragraphs):
        warn(
            f"{obstacles[0]}: applies to a single sentence; a text of several is translated as one, and parts may be "
            "missing"
        )
    return None
