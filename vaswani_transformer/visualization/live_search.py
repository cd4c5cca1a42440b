"""The beam search of section 6.1 for one sentence, shown while it runs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.beam_search_vaswani import BeamSearch, Hypotheses


@dataclass(frozen=True)
class FoundHypothesis:
    """A hypothesis at the end of the search.

    Attributes:
        tokens: Its generated tokens.
        text: The tokens decoded.
        score: Its log-probability divided by the length penalty.
    """

    tokens: tuple[int, ...]
    text: str
    score: float


@dataclass(frozen=True)
class LiveSearch:
    """What the search has found after a step.

    Attributes:
        step: The number of the step, from 1.
        text: The best live hypothesis or, at the end, the best of all.
        hypotheses: At the end, the `num_beams` best, best first; before it, none.
    """

    step: int
    text: str
    hypotheses: tuple[FoundHypothesis, ...] = ()


class _AbandonedError(Exception):
    """Raised in the observer to stop a search whose iterator was closed."""


def stream_search(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    lock: AbstractContextManager[Any] | None = None,
    **options: Any,
) -> Iterator[LiveSearch]:
    """Translate a sentence by beam search, and yield each step as it is made, then the end.

    The search runs in a thread of its own, and stops at its next step if the iterator is closed.

    Args:
        model: A model of this package.
        tokenizer: Its tokenizer.
        source: The sentence.
        lock: Held while the model computes.
        options: For `generate`, such as `num_beams` and `length_penalty`.

    Raises:
        Exception: What `generate` raises.
    """
    found: SimpleQueue[LiveSearch | Exception | None] = SimpleQueue()
    is_abandoned = Event()

    def search() -> None:
        observer = _Streamer(tokenizer, found, is_abandoned)
        beam_search = partial(type(model)._beam_search, observer=observer)
        try:
            with lock or nullcontext():
                inputs = tokenizer(source, return_tensors="pt").to(model.device)
                model.generate(**inputs, **options, custom_generate=beam_search)
            found.put(observer.end())
            found.put(None)
        except Exception as error:  # raised again by the iterator
            found.put(error)

    Thread(target=search, daemon=True).start()
    try:
        while (item := found.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        is_abandoned.set()


class _Streamer:
    """Observes a search for one sentence, and passes its best hypothesis on in each step."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        found: "SimpleQueue[LiveSearch | Exception | None]",
        is_abandoned: Event,
    ) -> None:
        self.tokenizer, self.found, self.is_abandoned = tokenizer, found, is_abandoned
        self.step = 0

    def __call__(self, search: BeamSearch, candidates: Hypotheses, has_ended: torch.Tensor) -> None:
        if self.is_abandoned.is_set():
            raise _AbandonedError
        self.search, self.step = search, self.step + 1
        live = search.state.live
        best = search.state.finished if live.scores[0, 0].isneginf() else live
        self.found.put(LiveSearch(self.step, self._decode(self._tokens(best, 0))))

    def end(self) -> LiveSearch:
        """The hypotheses that the search ended with."""
        results = self.search.results
        scores = results.scores[0].tolist()
        tokens = [self._tokens(results, index) for index in range(len(scores))]
        hypotheses = tuple(
            FoundHypothesis(own, self._decode(own), score) for own, score in zip(tokens, scores, strict=True) if own
        )
        return LiveSearch(self.step, hypotheses[0].text, hypotheses)

    def _tokens(self, hypotheses: Hypotheses, index: int) -> tuple[int, ...]:
        """The generated tokens of a hypothesis; none of a missing one."""
        start, length = self.search.prefix_length, int(hypotheses.rows[0, index].ge(0).sum())
        return tuple(hypotheses.tokens[0, index, start : start + length].tolist())

    def _decode(self, tokens: tuple[int, ...]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)
