"""Languages of a model: its directions, the tags of target languages, and the division of texts into sentences.

A model has one direction, or several; then each source begins with the tag of its target language.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from transformers import PreTrainedConfig
from transformers.models.whisper.tokenization_whisper import LANGUAGES


try:
    import sentencex
except ImportError:  # without this package, a model's code may lack it
    sentencex = None


# sentencex 1.0.32 fails on "Z\u00a0.": it steps over white space as if each had one byte.
_AS_SPACE = {code: " " for code in range(128, 0x3001) if chr(code).isspace()}

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
    return LANGUAGES.get(re.split("[-_]", code.lower())[0], "").title() or code


def is_same_language(one: str, other: str) -> bool:
    """Whether two codes name one language, or one names a variety of the other, as "en" and "en_US"."""
    subtags = (re.split("[-_]", code.lower()) for code in (one, other))
    return all(a == b for a, b in zip(*subtags, strict=False))


def target_tag(config: PreTrainedConfig, source: str | None, target: str | None) -> str | None:
    """The tag for a pair of languages; each may be None.

    Returns:
        None if the model has one direction and no tags, or if the languages leave the target open.

    Raises:
        ValueError: The model does not translate from `source` or into `target`. A model of unknown languages takes any.
    """
    if not (tags := getattr(config, "language_tags", None)):
        for asked, side, word in ((source, "source", "from"), (target, "target", "into")):
            known = getattr(config, f"{side}_language", None)
            if asked and known and not is_same_language(asked, known):
                raise ValueError(f"the model translates {word} {known}, not {asked}; choose a model for that pair")
        return None
    sources, targets = (_matching(asked, tags) for asked in (source, target))
    targets = [code for code in targets if set(sources) - {code}]
    if not targets:
        asked = " ".join([*(["from", source] if source else []), *(["into", target] if target else [])])
        raise ValueError(f"the model translates between {' and '.join(tags)}, not {asked}; choose two of these")
    return language_tag(targets[0]) if len(targets) == 1 else None


def _matching(asked: str | None, codes: Iterable[str]) -> list[str]:
    """The codes that match a language: the same code if there is one, else its varieties; all codes for None."""
    if asked in codes:
        return [asked]
    return [code for code in codes if not asked or is_same_language(asked, code)]


def direction(config: PreTrainedConfig, tag: str | None = None) -> tuple[str | None, str | None]:
    """Languages to translate from and into, by the tag of a source; None for what is unknown."""
    target = next((code for code in getattr(config, "language_tags", None) or () if language_tag(code) == tag), None)
    if target is None:
        return getattr(config, "source_language", None), getattr(config, "target_language", None)
    sources = [code for code in config.language_tags if code != target]
    return sources[0] if len(sources) == 1 else None, target


def split_tag(config: PreTrainedConfig, text: str) -> tuple[str | None, str]:
    """The tag that a text begins with, if any, and the text without it."""
    tags = map(language_tag, getattr(config, "language_tags", None) or ())
    tag = next((each for each in tags if text.lstrip().startswith(each)), None)
    return tag, text if tag is None else text.lstrip().removeprefix(tag).removeprefix(" ")


def required_tag(config: PreTrainedConfig, target: str | None) -> str | None:
    """The tag for a target language; None if the model has one direction.

    Raises:
        ValueError: The model does not translate into `target`, or has several directions and `target` is None.
    """
    tag = target_tag(config, None, target)
    if tag is None and getattr(config, "language_tags", None):
        raise _no_target(config)
    return tag


def _no_target(config: PreTrainedConfig) -> ValueError:
    codes = [*config.language_tags]
    return ValueError(
        f"target_language: the model translates between {' and '.join(codes)}; name the target (tgt_lang of the "
        f"pipeline), or begin each source with {' or '.join(map(language_tag, codes))}"
    )


def tagged(config: PreTrainedConfig, text: str, tag: str | None) -> str:
    """The text after a tag, unless it has that tag already.

    Raises:
        ValueError: The text begins with another tag; or the model needs one, and there is none.
    """
    present, text = split_tag(config, text)
    if present and tag not in (None, present):
        raise ValueError(f"the text begins with {present}, but {tag} is asked for; leave one of the two out")
    if not (present or tag) and text.strip() and getattr(config, "language_tags", None):
        raise _no_target(config)
    return with_tag(text, present or tag)


def with_tag(text: str, tag: str | None) -> str:
    """The text after a tag; blank text stays as it is."""
    return f"{tag} {text}" if tag and text.strip() else text


def require_tagged(config: PreTrainedConfig, input_ids: torch.Tensor) -> None:
    """Raise a ValueError if a row of `[batch, source]` ids lacks the tag that a model of several directions needs."""
    if not (tags := getattr(config, "language_tags", None)):
        return
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    is_text = input_ids.ne(config.pad_token_id)  # [batch, source]
    first = input_ids.gather(1, is_text.long().argmax(dim=1, keepdim=True))  # [batch, 1], padding of a blank row
    allowed = torch.tensor([*tags.values(), config.pad_token_id, *ends], device=input_ids.device)
    if not torch.isin(first, allowed).all():
        raise _no_target(config)


def split_sentences(text: str, language: str | None) -> list[str]:
    """Divide text into sentences and the white space between them. A line feed ends a sentence.

    Args:
        text: Any text.
        language: Its code; None for the rules of English.

    Returns:
        An odd number of strings, which concatenated are the text: white space, which may be empty, at even indices,
        sentences at odd ones.
    """
    pieces = [""]
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        before, *rest = _split_line(line, _base(language))
        pieces = [*pieces[:-1], pieces[-1] + before, *rest]
    return pieces


def _split_line(line: str, language: str) -> list[str]:
    pieces, start = [""], 0
    for end in [*accumulate(map(len, sentencex.segment(language, line.translate(_AS_SPACE)))), len(line)]:
        before, sentence, after = _PIECE.fullmatch(line[start:end]).groups()
        start = end
        pieces[-1] += before
        if sentence and len(pieces) > 1 and _continues(pieces[-2], pieces[-1], sentence):
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
    def split(cls, config: PreTrainedConfig, text: str) -> "Paragraph":
        """Divide a text by the rules of the source language."""
        tag, text = split_tag(config, text)
        source, target = direction(config, tag)
        pieces = split_sentences(text, source) if text.strip() else [text, "", ""]
        return cls(pieces[::2], [with_tag(sentence, tag) for sentence in pieces[1::2]], target)

    def join(self, translations: Sequence[str]) -> str:
        """Concatenate translations of the sentences, with the white space between the sentences.

        White space before the first and after the last is dropped. Where two sentences have none between them, their
        translations get a space, unless the target language writes none.
        """
        space = " " if writes_spaces(self.target) else ""
        before = ["", *(between or space for between in self.spaces[1:-1])]
        return "".join(map("".join, zip(before, translations, strict=True)))


class Paragraphs:
    """Texts, and the sentences to translate instead of them.

    Args:
        config: The model's configuration.
        texts: Each with its tag, if it needs one.

    Attributes:
        sentences: The sentences of all texts, in their order.
        texts: For each sentence, the index of its text.

    Raises:
        ImportError: The sentence splitter is not installed.
    """

    def __init__(self, config: PreTrainedConfig, texts: Sequence[str]) -> None:
        if sentencex is None:
            raise ImportError("split_sentences: run `pip install sentencex`, or set this to False")
        self._paragraphs = [Paragraph.split(config, text) for text in texts]
        self.sentences = [sentence for paragraph in self._paragraphs for sentence in paragraph.sentences]
        self.texts = [index for index, paragraph in enumerate(self._paragraphs) for _ in paragraph.sentences]

    def join(
        self, batches: Iterable[tuple[Sequence[int], Sequence[Sequence[str]]]]
    ) -> Iterator[tuple[list[int], list[list[str]]]]:
        """Join translations of sentences.

        Args:
            batches: Indices of sentences, and the translations of each, best first. Each sentence comes once.

        Yields:
            After each batch, the indices of the texts that it completes, and the translations of each, best first.
        """
        translated: list[dict[int, Sequence[str]]] = [{} for _ in self._paragraphs]
        for indices, translations in batches:
            for index, ranked in zip(indices, translations, strict=True):
                translated[self.texts[index]][index] = ranked
            begun = dict.fromkeys(self.texts[index] for index in indices)
            complete = [text for text in begun if len(translated[text]) == len(self._paragraphs[text].sentences)]
            joined = []
            for text in complete:
                ranks = zip(*(ranked for _, ranked in sorted(translated[text].items())), strict=True)
                joined.append([self._paragraphs[text].join(sentences) for sentences in ranks])
            yield complete, joined
