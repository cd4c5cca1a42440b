"""Translation for the demo page, without gradio: texts and files within limits, one at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.text_files import decode_lines
from ...model.beam_search_vaswani import penalty_type
from ...model.languages_vaswani import (
    Paragraph,
    direction,
    long_sentence,
    longer_than_trained,
    required_tag,
    split_tag,
    tagged,
)
from ...model.pipeline_vaswani import translate_in_batches
from ...model.scores_vaswani import TranslationScore, is_own_search, score_generated
from ...options.arguments import COUNT, Interval, option
from ..alignment import draw_alignment
from ..attention import read_attention, require_text
from ..explorer import explorer_page
from ..figures import Picture
from ..live_search import stream_search
from ..search_trace import TracedHypothesis


class RefusedError(ValueError):
    """A text or file over a limit; the message is for the person who gave it."""


@dataclass(frozen=True)
class Limits:
    """What the page accepts."""

    max_characters: int = option(2000, "Longest text, or line of a file, in characters.", COUNT)
    max_sentences: int = option(40, "Sentences of a text, each with a picture.", COUNT)
    max_tokens: int = option(128, "Longest sentence, in tokens.", COUNT)
    max_explored_tokens: int = option(40, "Longest sentence to explore, which needs many searches.", COUNT)
    max_file_kilobytes: int = option(1000, "Largest file.", COUNT)
    max_lines: int = option(1000, "Lines of a file.", COUNT)
    max_queue: int = option(20, "Requests that wait; further ones are refused.", COUNT)
    alternatives: int = option(
        2, "Alternatives of each token in the explorer; each is a search.", Interval(minimum=0, maximum=100)
    )


@dataclass(frozen=True)
class TranslatedSentence:
    """A sentence, the hypotheses that its search ended with, best first, and how probable the model finds each."""

    source: str
    hypotheses: tuple[TracedHypothesis, ...]
    scores: tuple[TranslationScore, ...]


@dataclass(frozen=True)
class TextProgress:
    """How much of a text is translated.

    Attributes:
        text: The translation, as far as it is known.
        sentences: Those whose search has ended.
        warning: What may be wrong with the translation; None if nothing is known to be.
    """

    text: str
    sentences: tuple[TranslatedSentence, ...] = ()
    warning: str | None = None


@dataclass(frozen=True)
class FileProgress:
    """How much of a file is translated.

    Attributes:
        done: Lines translated.
        total: Lines of the file.
        text: At the end, the translations, a line each; before it, None.
        warning: What may be wrong with the translations; None if nothing is known to be.
    """

    done: int
    total: int
    text: str | None = None
    warning: str | None = None


class DemoTranslator:
    """A model and its limits. It can be called from several threads, and computes for one at a time.

    Args:
        model: A model of this package, in evaluation mode.
        tokenizer: Its tokenizer.
        limits: What it accepts.
        target_language: Language to translate into, of a model of several directions.
        tokens_per_batch: Source tokens of a batch of a file's lines.
        options: For `generate`, such as `num_beams` and `length_penalty`.

    Attributes:
        languages: Codes of the languages to translate from and into; None for what is unknown.

    Raises:
        ValueError: The search has one beam; or the model does not translate into the language, or needs it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        limits: Limits | None = None,
        target_language: str | None = None,
        tokens_per_batch: int = 2048,
        **options: Any,
    ) -> None:
        if options.get("num_beams", model.generation_config.num_beams or 1) < 2:
            raise ValueError("num_beams: is 1, which is no beam search; ask for at least 2")
        self.model, self.tokenizer, self.limits = model, tokenizer, limits or Limits()
        self.tokens_per_batch, self.options = tokens_per_batch, options
        self.target_language = target_language
        self.languages = direction(model.config, required_tag(model.config, target_language))
        self._lock = Lock()

    def translate(self, source: str) -> Iterator[TextProgress]:
        """Translate a text sentence by sentence; yields each step of the search, with its best live hypothesis.

        Raises:
            RefusedError: The text is empty or over a limit.
        """
        paragraph, warning = self._checked(source, self.limits.max_tokens)
        # So that the search goes on until the hypotheses that are shown can no longer change.
        beams = self.options.get("num_beams", self.model.generation_config.num_beams)
        options = {**self.options, "num_return_sequences": beams}
        done: tuple[TranslatedSentence, ...] = ()
        count = len(paragraph.sentences)
        for sentence in paragraph.sentences:
            before = [each.hypotheses[0].text for each in done]
            for search in stream_search(self.model, self.tokenizer, sentence, self._lock, **options):
                if search.hypotheses:
                    spoken, scores = (
                        split_tag(self.model.config, sentence)[1],
                        self._scores(sentence, search.hypotheses),
                    )
                    done += (TranslatedSentence(spoken, search.hypotheses, scores),)
                text = paragraph.join([*before, search.text, *[""] * (count - len(before) - 1)])
                yield TextProgress(text, done, warning)

    def _scores(self, source: str, hypotheses: tuple[TracedHypothesis, ...]) -> tuple[TranslationScore, ...]:
        start, device = self.model.config.decoder_start_token_id, self.model.device
        rows = {"input_ids": [[start, *each.tokens] for each in hypotheses]}
        ids = self.tokenizer.pad(rows, return_tensors="pt").input_ids.to(device)  # [hypotheses, 1 + target]
        inputs = self.tokenizer(source, return_tensors="pt").to(device)  # [1, source]
        search = self.model.generation_config
        alpha = self.options.get("length_penalty", search.length_penalty)
        penalty = (1.0 if alpha is None else alpha, penalty_type(search))
        with self._lock:
            by_own = is_own_search(self.model, self.options)
            return tuple(score_generated(self.model, self.tokenizer, inputs, ids, *penalty, by_own_search=by_own))

    def align(self, source: str, target: tuple[int, ...]) -> Picture:
        """Draw the encoder-decoder attention of a sentence and the tokens of its translation."""
        with self._lock:
            return draw_alignment(read_attention(self.model, self.tokenizer, self._tagged(source), target))

    def explore(self, source: str) -> str:
        """The HTML page of a sentence's attention, its search and its alternatives.

        Raises:
            RefusedError: The sentence is empty or over a limit.
        """
        most = self.limits.max_explored_tokens
        paragraph, _ = self._checked(source, most)
        sentence, *others = paragraph.sentences
        if others:
            raise RefusedError(
                f"The text has {len(others) + 1} sentences, and the explorer shows one; leave one of them."
            )
        options = {"alternatives": self.limits.alternatives, "max_tokens": most, **self.options}
        with self._lock:
            return explorer_page(self.model, self.tokenizer, sentence, **options)

    def translate_file(self, path: str | Path) -> Iterator[FileProgress]:
        """Translate a UTF-8 file line by line, each sentence by sentence; blank lines stay blank.

        Raises:
            RefusedError: The file is no text, or it or one of its lines is over a limit.
        """
        lines = [self._tagged(line) for line in self._lines(Path(path))]
        translations = [""] * len(lines)
        yield FileProgress(0, len(lines))
        long: dict[int, int] = {}
        options = {"split_sentences": True, "observe_long": long.update, **self.options}
        batches = translate_in_batches(self.model, self.tokenizer, lines, self.tokens_per_batch, **options)
        done = 0
        while (batch := self._next(batches)) is not None:
            for index, texts in zip(*batch, strict=True):
                translations[index] = " ".join(texts[0].splitlines())
            done += len(batch[0])
            yield FileProgress(done, len(lines))
        first = min(long, default=None)
        warning = None if first is None else self._warning(f"A sentence of line {first + 1:,}", long[first])
        yield FileProgress(done, len(lines), "".join(f"{line}\n" for line in translations), warning)

    def _next(self, batches: Iterator[tuple[list[int], list[list[str]]]]) -> tuple[list[int], list[list[str]]] | None:
        with self._lock:
            return next(batches, None)

    def _checked(self, source: str | None, most: int) -> tuple[Paragraph, str | None]:
        """The sentences of a text, if it is within the limits, and a warning; programs send None for no text."""
        source = source or ""
        with _refusals():
            require_text("The text", source)
        paragraph, tokens = self._within_limits("The text", source, most)
        if (count := len(paragraph.sentences)) > self.limits.max_sentences:
            raise RefusedError(
                f"The text has {count} sentences, and the limit is {self.limits.max_sentences}; shorten it."
            )
        is_long = longer_than_trained(self.model.config, {0: tokens})
        return paragraph, self._warning("A sentence", tokens) if is_long else None

    def _warning(self, what: str, tokens: int) -> str:
        return f"{long_sentence(self.model.config, what, tokens)}; divide it."

    def _tagged(self, text: str) -> str:
        """A text without white space around it, with the tag of its target language; another tag is refused."""
        with _refusals():
            return tagged(self.model.config, text.strip(), self.target_language)

    def _within_limits(self, what: str, text: str, most: int) -> tuple[Paragraph, int]:
        """The sentences of a text, and the number of tokens of the longest; refuses what is over a limit."""
        if len(text) > self.limits.max_characters:  # before it is divided into tokens, which takes time
            limit = f"{self.limits.max_characters:,}"
            raise RefusedError(f"{what} has {len(text):,} characters, and the limit is {limit}; shorten it.")
        most = min(most, getattr(self.model.config, "max_positions", None) or most)
        paragraph = Paragraph.of(self.model.config, self._tagged(text))
        count = max(map(len, self.tokenizer(paragraph.sentences).input_ids))
        if count > most:
            raise RefusedError(f"{what} has a sentence of {count:,} tokens, and the limit is {most:,}; shorten it.")
        return paragraph, count

    def _lines(self, path: Path) -> list[str]:
        """The lines of a file, if it and they are within the limits."""
        limit = self.limits.max_file_kilobytes
        if path.stat().st_size > 1000 * limit:
            raise RefusedError(f"The file has more than {limit:,} kB, which is the limit; divide it.")
        with _refusals(), path.open("rb") as file:
            lines = list(decode_lines(file, Path("The file")))
        if len(lines) > self.limits.max_lines:
            raise RefusedError(
                f"The file has more than {self.limits.max_lines:,} lines, which is the limit; divide it."
            )
        for number, line in enumerate(lines, start=1):
            self._within_limits(f"Line {number:,}", line, self.limits.max_tokens)
        if not any(line.strip() for line in lines):
            raise RefusedError("The file has no text.")
        return lines


@contextmanager
def _refusals() -> Iterator[None]:
    """Refuse what is a ValueError elsewhere, such as a text that is empty or no Unicode."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(f"{error}.") from None
