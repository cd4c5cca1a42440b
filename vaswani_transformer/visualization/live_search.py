"""The beam search of section 6.1 for one sentence, shown while it runs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .search_trace import TracedHypothesis, trace_search


@dataclass(frozen=True)
class LiveSearch:
    """What the search has found after a step.

    Attributes:
        text: The best live hypothesis or, at the end, the best of all.
        hypotheses: At the end, the `num_return_sequences` best, best first; before it, none.
    """

    text: str
    hypotheses: tuple[TracedHypothesis, ...] = ()


class _AbandonedError(Exception):
    """Raised in the search to stop it, when its iterator was closed."""


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
        Exception: What `trace_search` raises.
    """
    found: SimpleQueue[LiveSearch | Exception | None] = SimpleQueue()
    is_abandoned = Event()

    def observe(text: str) -> None:
        if is_abandoned.is_set():
            raise _AbandonedError
        found.put(LiveSearch(text))

    def search() -> None:
        try:
            with lock or nullcontext():
                hypotheses = trace_search(model, tokenizer, source, observe, **options).hypotheses
            found.put(LiveSearch(hypotheses[0].text, hypotheses))
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
