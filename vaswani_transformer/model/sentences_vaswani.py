"""Paragraphs: their division into sentences, and the warning of an input longer than anything trained on."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from transformers import PreTrainedConfig

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


class Paragraphs:
    """Texts, and the sentences to translate instead of them.

    Args:
        config: The model's configuration.
        texts: Each with its tag, if it needs one.
        split_sentences: Whether to divide them; otherwise each text is a sentence.

    Attributes:
        sentences: The sentences of all texts, in their order.
        texts: For each sentence, the index of its text.

    Raises:
        ImportError: The sentence splitter is not installed.
    """

    def __init__(self, config: PreTrainedConfig, texts: Sequence[str], split_sentences: bool = True) -> None:
        if split_sentences:
            require_splitter()
            self._paragraphs = [Paragraph.of(config, text) for text in texts]
        else:
            self._paragraphs = [Paragraph(["", ""], [text], None) for text in texts]
        self.sentences = [sentence for paragraph in self._paragraphs for sentence in paragraph.sentences]
        self.texts = [index for index, paragraph in enumerate(self._paragraphs) for _ in paragraph.sentences]

    def join(
        self, batches: Iterable[tuple[Sequence[int], Sequence[Sequence[str]]]]
    ) -> Iterator[tuple[list[int], list[list[str]]]]:
        """Join translations of sentences.

        Args:
            batches: Indices of sentences, and the translations of each, best first. Each sentence comes once.

        Yields:
            After each batch, the indices of the texts that it completes, and the translations of each: the first of
            the first ones of its sentences, and so on.
        """
        found: list[dict[int, Sequence[str]]] = [{} for _ in self._paragraphs]
        for indices, translations in batches:
            for index, ranked in zip(indices, translations, strict=True):
                found[self.texts[index]][index] = ranked
            begun = dict.fromkeys(self.texts[index] for index in indices)
            complete = [text for text in begun if len(found[text]) == len(self._paragraphs[text].sentences)]
            yield complete, [self._joined(text, found[text]) for text in complete]

    def _joined(self, text: int, found: Mapping[int, Sequence[str]]) -> list[str]:
        ranked = zip(*(translations for _, translations in sorted(found.items())), strict=True)
        return [self._paragraphs[text].join(translations) for translations in ranked]


def longer_than_trained(config: PreTrainedConfig, lengths: Mapping[int, int]) -> dict[int, int]:
    """The numbers of tokens that exceed every sentence trained on; none if that is unknown."""
    longest = longest_known(config)
    return {} if longest is None else {index: length for index, length in lengths.items() if length > longest}


def long_sentence(config: PreTrainedConfig, what: str, tokens: int) -> str:
    """The warning of a sentence that is longer than any trained on."""
    return (
        f"{what} has {tokens} tokens, and the longest sentence trained on {longest_known(config)}; parts of it may "
        f"stay untranslated"
    )


def longest_known(config: PreTrainedConfig) -> int | None:
    """Tokens of the longest source that the model has learned to translate; None if unknown."""
    return getattr(config, "longest_source", None) or getattr(config, "max_positions", None)
