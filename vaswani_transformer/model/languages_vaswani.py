"""Texts: the directions in which a model translates, the sentences of a text, and a lock for encoding.

A model has one direction, or several; then each source begins with the tag of its target language.
"""

import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate, pairwise
from threading import RLock
from typing import Any

import torch
from transformers import PreTrainedConfig


try:
    import sentencex
except ImportError:  # a model's code may run without this package, which requires it
    sentencex = None


# sentencex 1.0.32 fails on "Z\u00a0.": it assumes that each white-space character has one byte.
_AS_SPACE = {code: " " for code in range(128, 0x3001) if chr(code).isspace()}

# Of printf, str.format and HTML, as in "%s", "{name}" and "<b>".
PLACEHOLDER = r"%(?:\(\w+\)|\d\$)?[sdif]\b|\{\w*\}|</?[a-z][a-z0-9]*\s*/?>"

_PIECE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
_FULL_WIDTH_ENDS = ("\u3002", "\uff01", "\uff1f")  # no space follows these
_WITHOUT_SPACES = ("zh", "yue", "ja", "th", "lo", "km", "my")


def language_tag(language: str) -> str:
    """The special token that begins a source to be translated into a language (Johnson et al., 2017)."""
    return f"<2{language}>"


def is_language_tag(token: str) -> bool:
    """Whether a special token is the tag of a language."""
    return token.startswith("<2") and token.endswith(">")


def language_name(code: str) -> str:
    """The English name of a language; its code, if the name is unknown."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES  # rarely needed

    return LANGUAGES.get(re.split("[-_]", code.lower())[0], "").title() or code


def is_same_language(one: str, other: str) -> bool:
    """Whether two codes name one language, or one names a variety of the other, as "en" and "en_US"."""
    subtags = (re.split("[-_]", code.lower()) for code in (one, other))
    return all(a == b for a, b in zip(*subtags, strict=False))


def with_tag(text: str, tag: str | None) -> str:
    """Put a tag before a text; blank text is unchanged."""
    return f"{tag} {text}" if tag and text.strip() else text


def has_words(text: str) -> bool:
    """Whether a text has a letter outside placeholders; a translation copies any other text."""
    return any(map(str.isalpha, re.sub(PLACEHOLDER, "", text)))


def require_text(text: object, name: str) -> str:
    """Return the text; raise a TypeError if it is not a string, a ValueError if it has a lone surrogate."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: must be a string, is {type(text).__name__}: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name}: {reprlib.repr(text)} has a lone surrogate at position {error.start}; give valid Unicode"
        raise ValueError(message) from None
    return text


class Directions:
    """The directions in which a model translates, and the tags that choose between them.

    A tag is None if it is unknown, or if the model has one direction and no tags.

    Args:
        config: Configuration of any encoder-decoder.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        self._config = config
        self._tags: Mapping[str, int] = getattr(config, "language_tags", None) or {}
        self._pair = getattr(config, "source_language", None), getattr(config, "target_language", None)

    def tag(self, source: str | None, target: str | None, is_required: bool = False) -> str | None:
        """The tag for a pair of languages; each may be None.

        Raises:
            ValueError: The model does not translate from `source` or into `target`; a model of unknown languages
                accepts any. Or a tag `is_required`, and the languages leave open which of several targets is meant.
        """
        if not self._tags:
            for asked, known, word in zip((source, target), self._pair, ("from", "into"), strict=True):
                if asked and known and not is_same_language(asked, known):
                    raise ValueError(f"the model translates {word} {known}, not {asked}; choose a model for that pair")
            return None
        sources, targets = (self._matching(asked) for asked in (source, target))
        targets = [code for code in targets if set(sources) - {code}]
        if not targets:
            asked = " ".join([*(["from", source] if source else []), *(["into", target] if target else [])])
            codes = " and ".join(self._tags)
            raise ValueError(f"the model translates between {codes}, not {asked}; choose two of these")
        if is_required and len(targets) > 1:
            raise self._no_target()
        return language_tag(targets[0]) if len(targets) == 1 else None

    def _matching(self, asked: str | None) -> list[str]:
        """The codes that match a language: the same code if there is one, else its varieties; all codes for None."""
        if asked in self._tags:
            return [asked]
        return [code for code in self._tags if not asked or is_same_language(asked, code)]

    def languages(self, tag: str | None = None) -> tuple[str | None, str | None]:
        """Source and target language of a source with this tag; None for an unknown one."""
        target = next((code for code in self._tags if language_tag(code) == tag), None)
        if target is None:
            return self._pair
        sources = [code for code in self._tags if code != target]
        return sources[0] if len(sources) == 1 else None, target

    def split(self, text: str) -> tuple[str | None, str]:
        """The tag at the start of a text, if any, and the text without it."""
        tag = next((tag for tag in map(language_tag, self._tags) if text.lstrip().startswith(tag)), None)
        return tag, text if tag is None else text.lstrip().removeprefix(tag).removeprefix(" ")

    def tagged(self, text: str, tag: str | None) -> str:
        """Put a tag before a text, unless the text has it already.

        Raises:
            ValueError: The text begins with another tag, or one that the model lacks; or the model needs a tag, and
                there is none.
        """
        present, text = self.split(text)
        if present and tag not in (None, present):
            raise ValueError(f"the text begins with {present}, but {tag} is asked for; leave one of the two out")
        if self._tags and not present and (unknown := re.match(r"\s*(<2[a-z]{2,3}([-_]\w+)?>)", text)):
            known = " and ".join(map(language_tag, self._tags))
            raise ValueError(f"the text begins with {unknown[1]}, but the model's tags are {known}; use one of these")
        if self._tags and not (present or tag) and text.strip():
            raise self._no_target()
        return with_tag(text, present or tag)

    def require_tagged(self, input_ids: torch.Tensor) -> None:
        """Raise a ValueError if the model has several directions, and a row of ids `[batch, source]` has no tag."""
        if not self._tags:
            return
        config = self._config
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        is_text = input_ids.ne(config.pad_token_id)  # [batch, source]
        first = input_ids.gather(1, is_text.long().argmax(dim=1, keepdim=True))  # [batch, 1], padding of a blank row
        allowed = first.new_tensor([*self._tags.values(), config.pad_token_id, *ends])
        if not first.eq(allowed).any(dim=1).all():
            raise self._no_target()

    def _no_target(self) -> ValueError:
        return ValueError(
            f"target_language: the model translates between {' and '.join(self._tags)}; name the target (tgt_lang of "
            f"the pipeline), or begin each source with {' or '.join(map(language_tag, self._tags))}"
        )


def split_sentences(text: str, language: str | None) -> list[str]:
    """Divide text into sentences and the white space between them. A line feed ends a sentence.

    Args:
        text: Any text.
        language: Its code; None for the rules of English.

    Returns:
        An odd number of strings that concatenate to the text: white space, possibly empty, at even indices, sentences
        at odd ones.
    """
    pieces = [""]
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        lengths = map(len, sentencex.segment(_base(language), line.translate(_AS_SPACE)))
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
    return not any(map(str.isalnum, piece)) or not (space or before.endswith(_FULL_WIDTH_ENDS))


def writes_spaces(language: str | None) -> bool:
    """Whether a language, such as English but not Chinese, writes spaces between words and between sentences."""
    return _base(language) not in _WITHOUT_SPACES


def _base(language: str | None) -> str:
    """The language of a code such as "en_US"; English if unknown."""
    return re.split("[-_]", language or "en")[0].lower()


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
        their translations get a space, unless the target language writes none.
        """
        space = " " if writes_spaces(self.target) else ""
        before = ["", *(between or space for between in self.spaces[1:-1])]
        return "".join(map("".join, zip(before, translations, strict=True)))


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


# A fast tokenizer keeps the truncation and padding of a call as state, so it encodes for one thread at a time. All
# tokenizers have one lock, since they are copied, pickled and hashed with their attributes.
ENCODING_LOCK = RLock()
if hasattr(os, "register_at_fork"):  # else a process forked while another thread encodes would deadlock
    os.register_at_fork(
        before=ENCODING_LOCK.acquire, after_in_parent=ENCODING_LOCK.release, after_in_child=ENCODING_LOCK.release
    )


def one_at_a_time(encode: Callable) -> Callable:
    """Make a method that encodes wait until no other thread encodes."""

    @wraps(encode)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        with ENCODING_LOCK:
            return encode(*args, **kwargs)

    return waiting
