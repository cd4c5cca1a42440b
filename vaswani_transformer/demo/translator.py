"""Translation for the demo page, without gradio: sentences and files within limits, one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..arguments import COUNT, Interval, option
from ..data.text_files import decode_lines
from ..model.batches_vaswani import translate_in_batches
from ..model.languages_vaswani import required_tag, tagged
from ..visualization.alignment import draw_alignment
from ..visualization.attention import read_attention
from ..visualization.explorer import explorer_page
from ..visualization.figures import Picture
from ..visualization.live_search import LiveSearch, stream_search


class RefusedError(ValueError):
    """A text or file over a limit; the message is for the person who gave it."""


@dataclass(frozen=True)
class Limits:
    """What the page accepts."""

    max_characters: int = option(2000, "Longest sentence, in characters.", COUNT)
    max_tokens: int = option(128, "Longest sentence, in tokens.", COUNT)
    max_explored_tokens: int = option(40, "Longest sentence to explore, which needs many searches.", COUNT)
    max_file_kilobytes: int = option(1000, "Largest file.", COUNT)
    max_lines: int = option(1000, "Lines of a file.", COUNT)
    max_queue: int = option(20, "Requests that wait; further ones are refused.", COUNT)
    alternatives: int = option(
        2, "Alternatives of each token in the explorer; each is a search.", Interval(minimum=0, maximum=100)
    )


@dataclass(frozen=True)
class FileProgress:
    """How much of a file is translated.

    Attributes:
        done: Lines translated.
        total: Lines of the file.
        text: At the end, the translations, a line each; before it, None.
    """

    done: int
    total: int
    text: str | None = None


class DemoTranslator:
    """A model and its limits. It can be called from several threads, and computes for one at a time.

    Args:
        model: A model of this package, in evaluation mode.
        tokenizer: Its tokenizer.
        limits: What it accepts.
        target_language: Language to translate into, of a model of several directions.
        tokens_per_batch: Source tokens of a batch of a file's lines.
        options: For `generate`, such as `num_beams` and `length_penalty`.

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
        required_tag(model.config, target_language)
        self.target_language = target_language
        self._lock = Lock()

    def translate(self, source: str) -> Iterator[LiveSearch]:
        """Translate a sentence; yields the best live hypothesis of each step, then all final hypotheses.

        Raises:
            RefusedError: The sentence is empty or over a limit.
        """
        text = self._checked(source, self.limits.max_tokens)
        # So that the search goes on until the hypotheses that are shown can no longer change.
        beams = self.options.get("num_beams", self.model.generation_config.num_beams)
        options = {**self.options, "num_return_sequences": beams}
        yield from stream_search(self.model, self.tokenizer, text, self._lock, **options)

    def align(self, source: str, target: tuple[int, ...]) -> Picture:
        """Draw the encoder-decoder attention of a sentence and the tokens of its translation."""
        with self._lock:
            return draw_alignment(read_attention(self.model, self.tokenizer, self._tagged(source), target))

    def explore(self, source: str) -> str:
        """The HTML page of a sentence's attention, its search and its alternatives.

        Raises:
            RefusedError: The sentence is empty or over a limit.
        """
        text = self._checked(source, self.limits.max_explored_tokens)
        with self._lock:
            return explorer_page(
                self.model, self.tokenizer, text, alternatives=self.limits.alternatives, **self.options
            )

    def translate_file(self, path: str | Path) -> Iterator[FileProgress]:
        """Translate a UTF-8 file, a sentence a line; blank lines stay blank.

        Raises:
            RefusedError: The file is no text, or it or one of its lines is over a limit.
        """
        lines = [self._tagged(line) for line in self._lines(Path(path))]
        translations = [""] * len(lines)
        yield FileProgress(0, len(lines))
        batches = translate_in_batches(self.model, self.tokenizer, lines, self.tokens_per_batch, **self.options)
        done = 0
        while (batch := self._next(batches)) is not None:
            for index, texts in zip(*batch, strict=True):
                translations[index] = " ".join(texts[0].splitlines())
            done += len(batch[0])
            yield FileProgress(done, len(lines))
        yield FileProgress(done, len(lines), "".join(f"{line}\n" for line in translations))

    def _next(self, batches: Iterator[tuple[list[int], list[list[str]]]]) -> tuple[list[int], list[list[str]]] | None:
        with self._lock:
            return next(batches, None)

    def _checked(self, source: str | None, most: int) -> str:
        """The sentence without white space around it, if it is within the limits; programs send None for no text."""
        if source is None or not source.strip():
            raise RefusedError("There is no text; type a sentence.")
        try:
            source.encode()
        except UnicodeEncodeError:
            raise RefusedError("The text is not valid Unicode.") from None
        if reason := self._excess(source, most):
            raise RefusedError(f"The text {reason}; shorten it.")
        return self._tagged(source)

    def _tagged(self, text: str) -> str:
        """A text without white space around it, with the tag of its target language."""
        try:
            return tagged(self.model.config, text.strip(), self.target_language)
        except ValueError as error:  # it begins with another tag
            raise RefusedError(f"{error}.") from None

    def _excess(self, text: str, most: int) -> str | None:
        """How a text exceeds the limits; None if it does not."""
        if len(text) > self.limits.max_characters:  # before it is divided into tokens, which takes time
            return f"has {len(text):,} characters, and the limit is {self.limits.max_characters:,}"
        if getattr(self.model.config, "position_encoding", None) == "learned":
            most = min(most, self.model.config.max_position_embeddings)
        count = len(self.tokenizer(text.strip()).input_ids)
        return f"has {count:,} tokens, and the limit here is {most:,}" if count > most else None

    def _lines(self, path: Path) -> list[str]:
        """The lines of a file, if it and they are within the limits."""
        limit = self.limits.max_file_kilobytes
        if path.stat().st_size > 1000 * limit:
            raise RefusedError(f"The file has more than {limit:,} kB, which is the limit; divide it.")
        lines: list[str] = []
        try:
            with path.open("rb") as file:
                for number, line in enumerate(decode_lines(file, Path("The file")), start=1):
                    if number > self.limits.max_lines:
                        raise RefusedError(
                            f"The file has more than {self.limits.max_lines:,} lines, which is the limit; divide it."
                        )
                    if "\0" in line or "\r" in line.strip():  # UTF-16 without a mark; line ends of old Macs
                        raise RefusedError(f"Line {number:,} is no UTF-8 text with line feeds; save the file as such.")
                    if reason := self._excess(line, self.limits.max_tokens):
                        raise RefusedError(f"Line {number:,} {reason}; shorten it.")
                    lines.append(line)
        except RefusedError:
            raise
        except ValueError as error:  # not UTF-8
            raise RefusedError(f"{error}.") from None
        if not any(line.strip() for line in lines):
            raise RefusedError("The file has no text.")
        return lines
