"""Sources given as token ids: cut to the positions of an engine, and searched in batches of one length."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from ..io.console import ProgressBar


Result = TypeVar("Result")

_TOKENS_PER_BATCH = 4096  # of the sources; a longer source forms its own batch


def search_in_batches(
    sources: Sequence[Sequence[int]],
    search: Callable[[list[Sequence[int]]], Sequence[Result]],
    description: str | None = None,
) -> list[Result]:
    """What a search returns for each source, in their order.

    A batch has sources of one length, and therefore one length limit; the longest come first.

    Args:
        sources: Token ids of each source.
        search: Returns a result for each source of a batch.
        description: Text of the progress bar; None for no bar.
    """
    results: dict[int, Result] = {}
    lengths = [len(source) for source in sources]
    longest_first = sorted(range(len(sources)), key=lengths.__getitem__, reverse=True)
    with ProgressBar(total=len(sources), desc=description, unit="sentences", delay=5, disable=not description) as bar:
        for length, group in groupby(longest_first, lengths.__getitem__):
            indices, size = list(group), max(1, _TOKENS_PER_BATCH // length)
            for start in range(0, len(indices), size):
                batch = indices[start : start + size]
                results |= zip(batch, search([sources[index] for index in batch]), strict=True)
                bar.update(len(batch))
    return [results[index] for index in range(len(sources))]


def cut_to_positions(
    sources: Sequence[Sequence[int]], positions: int, warn: Callable[[str], None]
) -> list[Sequence[int]]:
    """Sources with at most so many tokens, the last of them EOS; `warn` is called if one had more."""
    if any(len(source) > positions for source in sources):
        warn(
            f"a sentence has more tokens than the export takes, {positions}; the rest of it is not translated; "
            "divide it"
        )
    return [ids if len(ids) <= positions else [*ids[: positions - 1], ids[-1]] for ids in sources]
