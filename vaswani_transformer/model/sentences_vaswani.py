"""Paragraphs: their division into sentences, and the warning of an input longer than anything trained on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from .languages_vaswani import direction, split_tag, with_tag


try:
    import sentencex
except ImportError:  # only `split_sentences` needs it
    sentencex = None

# sentencex 1.0.32 fails on "Z\u00a0.": it steps over white space as if each had one byte.
_AS_SPACE = {code: " " for code in range(128, 0x3001) if chr(code).isspace()}

_PIECE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
_FULL_WIDTH_ENDS = ("\u3002", "\uff01", "\uff1f")  # no space follows these
_WITHOUT_SPACES = ("zh", "yue", "ja", "th", "lo", "km", "my")  # languages that write no spaces between sentences


def require_splitter() -> None:
    """Raise an ImportError unless the sentence splitter is installed."""
    if sentencex is None:
        raise ImportError("split_sentences: sentencex is not installed; run `pip install sentencex`")


def split_sentences(text: str, language: str | None) -> list[str]:
    """Divide text into sentences and the white space between them. A line break ends a sentence.

    Args:
        text: Any text.
        language: Its code; for an unknown one, the rules of English serve.

    Returns:
        An odd number of strings, which concatenated are the text: white space, which may be empty, at even indices,
        sentences at odd ones.
    """
    found = [""]
    for line in text.splitlines(keepends=True):
        before, *rest = _split_line(line, _base(language))
        found = [*found[:-1], found[-1] + before, *rest]
    return found


def _split_line(line: str, language: str) -> list[str]:
    found, start = [""], 0
    for end in [*accumulate(map(len, sentencex.segment(language, line.translate(_AS_SPACE)))), len(line)]:
        before, sentence, after = _PIECE.fullmatch(line[start:end]).groups()
        start = end
        found[-1] += before
        if sentence and len(found) > 1 and _continues(found[-2], found[-1], sentence):
            found[-2:] = [found[-2] + found[-1] + sentence, after]
        elif sentence:
            found += [sentence, after]
    return found


def _continues(before: str, space: str, piece: str) -> bool:
    """Whether a piece is no sentence of its own, such as "?" after a space, or ".-C." in "av. J.-C."."""
    return not any(map(str.isalnum, piece)) or not (space or before.endswith(_FULL_WIDTH_ENDS))


def _base(language: str | None) -> str:
    """The language of a code such as "en_US"; English if unknown."""
    return re.split("[-_]", language or "en")[0].lower()


@dataclass(frozen=True)
class Paragraph:
    """A text in sentences.

    Attributes:
        spaces: The white space, possibly empty, before, between and after the sentences.
        sentences: Each with the tag of the text, if it has one. Blank text has one empty sentence.
        target: Code of the language of the translations; None if unknown.
    """

    spaces: list[str]
    sentences: list[str]
    target: str | None

    @classmethod
    def of(cls, config: PreTrainedConfig, text: str) -> "Paragraph":
        """Divide a text by the rules of its language, which `config` and the text's tag tell."""
        tag, text = split_tag(config, text)
        source, target = direction(config, tag)
        pieces = split_sentences(text, source) if text.strip() else [text, "", ""]
        return cls(pieces[::2], [with_tag(sentence, tag) for sentence in pieces[1::2]], target)

    def join(self, translations: Sequence[str]) -> str:
        """Concatenate the translations of the sentences, with the white space that was between these.

        Sentences without white space between them get a space, unless the target language writes none.
        """
        space = "" if _base(self.target) in _WITHOUT_SPACES else " "
        before = [self.spaces[0], *(between or space for between in self.spaces[1:-1])]
        return "".join(map("".join, zip(before, translations, strict=True))) + self.spaces[-1]


def longer_than_trained(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]
) -> dict[int, int]:
    """Number of tokens of the sentences that have more than any trained on, by index; empty if that is unknown."""
    longest = longest_known(config)
    if longest is None or not sentences:
        return {}
    lengths = map(len, tokenizer(list(sentences)).input_ids)
    return {index: length for index, length in enumerate(lengths) if length > longest}


def longest_known(config: PreTrainedConfig) -> int | None:
    """Tokens of the longest source that the model has learned to translate; None if unknown."""
    learned = getattr(config, "position_encoding", None) == "learned"
    return getattr(config, "longest_source", None) or (config.max_position_embeddings if learned else None)
