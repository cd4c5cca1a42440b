"""Languages: their codes, the directions in which a model translates, strings to copy, and a lock for encoding.

A model has one direction, or several; then each source begins with the tag of its target language.
"""

import os
import re
import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, wraps
from threading import RLock
from typing import Any

import torch
from transformers import PreTrainedConfig


# A model's code may run without this package, which requires these.
try:
    import langcodes
except ImportError:
    langcodes = None


# Languages and scripts without spaces between words: Chinese and Japanese, in which sentences have none between them
# either, then Thai, Lao, Tibetan, Burmese and Khmer.
HAN_LANGUAGES = ("zh", "yue", "wuu", "ja")
_WITHOUT_SPACES = (*HAN_LANGUAGES, "th", "lo", "bo", "dz", "my", "km")
HAN = "\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
UNSPACED_CHARACTER = re.compile(f"[\u0e00-\u109f\u1780-\u17ff{HAN}]")

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


def language_tag(language: str) -> str:
    """The special token that begins a source to be translated into a language (Johnson et al., 2017)."""
    return f"<2{language}>"


def is_language_tag(token: str) -> bool:
    """Whether a special token is the tag of a language."""
    return token.startswith("<2") and token.endswith(">")


@cache
def standard_code(code: str) -> str:
    """The code of a language in its shortest form: "ja" for "jpn", "zh-hant" for "zho_Hant", "fa" for "pes_Arab".

    It is an IETF tag (BCP 47) in lower case, with the macrolanguage in place of a language that stands for it. Without
    `langcodes`, or if the text is not a valid code, only case and underscores are normalized.
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
    """Split a text after its leading tag, of any language. Without a tag, the first part is empty."""
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
        """The model's codes for a language: an exact match if there is one, else its varieties; all codes for None."""
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
        """Lower-case a sentence in capitals, except its tag.

        Returns None if it is not in capitals, or if either language is Turkish or Azerbaijani.
        """
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


def writes_spaces(language: str | None) -> bool:
    """Whether a language, such as English but not Chinese, writes spaces between words."""
    return base_language(language) not in _WITHOUT_SPACES


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
