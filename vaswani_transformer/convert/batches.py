"""Batches in which every source has the same number of tokens."""

from collections.abc import Iterator, Sequence


def batches_of_one_length(sources: Sequence[Sequence[int]], tokens_per_batch: int = 4096) -> Iterator[list[int]]:
    """Indices of sources of equal length, so that a batch has one length limit; longest first.

    Args:
        sources: Token ids of each source.
        tokens_per_batch: Source tokens of a batch. A longer source forms its own batch.
    """
    batch: list[int] = []
    for index in sorted(range(len(sources)), key=lambda index: -len(sources[index])):
        length = len(sources[index])
        if batch and (len(sources[batch[0]]) != length or (len(batch) + 1) * length > tokens_per_batch):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
