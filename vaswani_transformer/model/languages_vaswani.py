"""Texts: the directions in which a model translates, the sentences of a text, and a lock for encoding.

A model has one direction, or several; then each source begins with the tag of its target language.
"""

import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate, pairwise
from threading import RLock
from typing import Any

import torch
from transformers import PreTrainedConfig


# A model's code may run without this package, which requires these.
try:
    import sentencex
except ImportError:
    sentencex = None
try:
    import langcodes
except ImportError:
    langcodes = None


# Languages and scripts without spaces between words: Chinese and Japanese, in which sentences have none between them
# either, then Thai, Lao, Tibetan, Burmese and Khmer.
_HAN_LANGUAGES = ("zh", "yue", "wuu", "ja")
_WITHOUT_SPACES = (*_HAN_LANGUAGES, "th", "lo", "bo", "dz", "my", "km")
_HAN = "\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
UNSPACED_CHARACTER = re.compile(f"[\u0e00-\u109f\u1780-\u17ff{_HAN}]")

# Where a sentence ends without a space after it, as "\n". It ends with a mark that means nothing else (in Chinese and
# Japanese, Hindi, Burmese, Khmer, Tibetan, Amharic, Urdu, Arabic, Armenian), or with an ASCII one after a Chinese or
# Japanese character. It continues with closing quotes, in Japanese after a quotation, in Khmer with "etc.".
_MARKS = "\u3002\uff61\uff01\uff1f\u0964\u0965\u104b\u17d4\u17d5\u0f0d\u0f0e\u1362\u06d4\u061f\u0589"
_CLOSING = ")\u2019\u201d\u300d\u300f\uff09\uff63"
_QUOTED = "\u3068\u3063\u306e\u3092\u306b\u3001\uff0c"  # to, t(te), no, wo, ni, commas
_END = re.compile(
    rf"(?:[{_MARKS}]|(?<=[{_HAN}])(?:[.\uff0e]|[?!]+))"
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

# Characters that the tokenizer removes: controls, soft hyphens, marks of direction, zero-width spaces. U+200C and
# U+200D stay, because Persian, Indic text and emoji need them. A class in a notation that JavaScript also knows.
_CONTROLS = r"\u0000-\u0008\u000e-\u001b\u007f-\u0084\u0086-\u009f"
INVISIBLE = rf"[{_CONTROLS}\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"

_BEFORE_TAG = re.compile(rf"(?:\s|{INVISIBLE})*")
_TAG = re.compile(rf"{_BEFORE_TAG.pattern}(<2[a-z]{{2,3}}([-_]\w+)?>)")

# Strings that a translation copies: addresses; placeholders of printf and str.format, and tags of HTML: "%s", "%.2f",
# "{name}", "{0:.2f}", "<b>".
URL = r"(?:https?://|www\.)[^\s<>\"']*[\w/]"
E_MAIL = r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
PLACEHOLDER = r"%(?:\(\w+\)|\d\$)?[-+]?\d*(?:\.\d+)?[sdif]\b|\{[\w.]*(?::[\w.,+-]*)?\}|</?[a-z][a-z0-9]*\s*/?>"
_COPIED = re.compile(f"{URL}|{E_MAIL}|{PLACEHOLDER}")
_COPIED_IN_ANY_CASE = re.compile(f"({_COPIED.pattern})", re.IGNORECASE)

# Turkish and Azerbaijani, in which the lower case of "I" is another letter than Python's.
_I_WITH_DOT = {"az", "tr"}

_PIECE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
# Characters that sentencex 1.0.32 does not know: marks of Khmer and Tibetan, half-width quotes; and white space of
# several bytes, since it fails on "Z\u00a0.".
_AS_KNOWN: dict[int, str] = {code: " " for code in range(128, 0x3001) if chr(code).isspace()}
_AS_KNOWN |= zip(map(ord, "\u17d4\u17d5\u0f0d\u0f0e\uff62\uff63"), "\u3002\u3002\u3002\u3002\u300c\u300d", strict=True)


def language_tag(language: str) -> str:
    """The special token that begins a source to be translated into a language (Johnson et al., 2017)."""
    return f"<2{language}>"


def is_language_tag(token: str) -> bool:
    """Whether a special token is the tag of a language."""
    return token.startswith("<2") and token.endswith(">")


def standard_code(code: str) -> str:
    """The code of a language in its shortest form: "ja" for "jpn", "zh-hant" for "zho_Hant", "fa" for "pes_Arab".

    It is an IETF tag (BCP 47) in lower case, with the macrolanguage in place of a language that stands for it. A text
    that is no code, or any without `langcodes`, only loses capitals and underscores.
    """
    if langcodes is not None:
        with suppress(ValueError):
            code = langcodes.standardize_tag(code, macro=True)
    return code.replace("_", "-").lower()


def base_language(code: str | None) -> str:
    """The language of a code without script and region: "zh" for "zho_Hant"; English for None."""
    return standard_code(code or "en").split("-")[0]


def language_name(code: str) -> str:
    """The English name of a language; its code, if the name is unknown."""
    with suppress(ValueError):
        language = langcodes.Language.get(standard_code(code))
        if language.language and language.is_valid():
            return language.display_name()
    return code


def is_same_language(one: str, other: str) -> bool:
    """Whether two codes name one language, or one names a variety of the other, as "en" and "en_US"."""
    subtags = (standard_code(code).split("-") for code in (one, other))
    return all(a == b for a, b in zip(*subtags, strict=False))


def cut_tag(text: str) -> tuple[str, str]:
    """Divide a text that begins with the tag of any language after it; without one, the first part is empty."""
    match = _TAG.match(text)
    end = len(text) - len(text[match.end() :].lstrip()) if match else 0
    return text[:end], text[end:]


def with_tag(text: str, tag: str | None) -> str:
    """Put a tag before a text; blank text is unchanged."""
    return f"{tag} {text}" if tag and text.strip() else text


def has_words(text: str) -> bool:
    """Whether a text has a letter outside addresses and placeholders; a translation copies any other text."""
    return any(map(str.isalpha, _COPIED.sub("", text)))


def is_in_capitals(text: str) -> bool:
    """Whether a text has three words or more and only capital letters, apart from addresses and placeholders.

    A shorter one, such as "BBC NEWS", may be an acronym. Text of a script without case, as "我在 IBM 工作", is not.
    """
    words = [word for word in _COPIED_IN_ANY_CASE.sub("", text).split() if any(map(str.isalpha, word))]
    return len(words) > 2 and all(letter.isupper() for word in words for letter in word if letter.isalpha())


def change_case(text: str, case: Callable[[str], str]) -> str:
    """Change the case of a text (`str.lower`, `str.upper`), except in addresses and placeholders."""
    parts = _COPIED_IN_ANY_CASE.split(text)
    return "".join(part if index % 2 else case(part) for index, part in enumerate(parts))


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
        if not asked or asked in self._tags:
            return [asked] if asked else [*self._tags]
        matching = [code for code in self._tags if is_same_language(asked, code)]
        return [code for code in matching if standard_code(code) == standard_code(asked)] or matching

    def languages(self, tag: str | None = None) -> tuple[str | None, str | None]:
        """Source and target language of a source with this tag; None for an unknown one."""
        target = next((code for code in self._tags if language_tag(code) == tag), None)
        if target is None:
            return self._pair
        sources = [code for code in self._tags if code != target]
        return sources[0] if len(sources) == 1 else None, target

    def split(self, text: str) -> tuple[str | None, str]:
        """The tag at the start of a text, if any, and the text without it."""
        start = _BEFORE_TAG.sub("", text, count=1)
        tag = next((tag for tag in map(language_tag, self._tags) if start.startswith(tag)), None)
        return tag, text if tag is None else start.removeprefix(tag).removeprefix(" ")

    def lower_capitals(self, sentence: str) -> str | None:
        """The lower-case form of a sentence in capitals, with its tag; None for any other, and for Turkish."""
        tag, text = self.split(sentence)
        if not is_in_capitals(text) or not _I_WITH_DOT.isdisjoint(map(base_language, self.languages(tag))):
            return None
        return with_tag(change_case(text, str.lower), tag)

    def tagged(self, text: str, tag: str | None) -> str:
        """Put a tag before a text, unless the text has it already.

        Raises:
            ValueError: The text begins with another tag, or one that the model lacks; or the model needs a tag, and
                there is none.
        """
        present, text = self.split(text)
        if present and tag not in (None, present):
            raise ValueError(f"the text begins with {present}, but {tag} is asked for; leave one of the two out")
        if self._tags and not present and (unknown := _TAG.match(text)):
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


def writes_spaces(language: str | None) -> bool:
    """Whether a language, such as English but not Chinese, writes spaces between words."""
    return base_language(language) not in _WITHOUT_SPACES


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
        if base_language(self.target) in _HAN_LANGUAGES:
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
