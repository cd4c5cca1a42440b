"""Section 5.1 of the paper: sentence pairs "batched together by approximate sequence length", each batch of about 25,000
source and 25,000 target tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchPlan:
    """How sentences sorted by length are cut into global batches.

    Attributes:
        order: `[pairs]` indices of the sentence pairs by target length, then source length.
        starts: `[batches + 1]` where each global batch begins in `order`; the last entry is the number of pairs.
        source: `[pairs]` source lengths in that order.
        target: `[pairs]` target lengths in that order.
    """

    order: np.ndarray
    starts: np.ndarray
    source: np.ndarray
    target: np.ndarray


def plan_batches(
    source_lengths: Sequence[int], target_lengths: Sequence[int], source_tokens: int, target_tokens: int
) -> BatchPlan:
    """Cut a corpus into global batches of at most so many tokens a side, padding included.

    Raises:
        ValueError: A sentence alone exceeds the budget.
    """
    source, target = np.asarray(source_lengths), np.asarray(target_lengths)
    for name, lengths, budget in (("source_tokens", source, source_tokens), ("target_tokens", target, target_tokens)):
        if lengths.max() > budget:
            raise ValueError(
                f"{name}: a budget of {budget} tokens cannot hold the longest sentence, of {lengths.max()} tokens; "
                f"raise it, or lower max_length"
            )
    order = np.lexsort((source, target))  # the last key is the first to sort by
    source, target = source[order], target[order]
    starts = [0]
    while starts[-1] < len(order):
        # No batch holds more sentences than tokens, so a window of that many is enough to find its end.
        window = slice(starts[-1], starts[-1] + min(source_tokens, target_tokens))
        count = np.arange(1, len(source[window]) + 1)
        padded_source = count * np.maximum.accumulate(source[window])
        padded_target = count * np.maximum.accumulate(target[window])
        fits = (padded_source <= source_tokens) & (padded_target <= target_tokens)  # true, then false for good
        starts.append(starts[-1] + int(fits.sum()))
    return BatchPlan(order, np.asarray(starts), source, target)


class TokenBudgetBatchSampler:
    """Yields micro-batches of indices; consecutive groups of `num_parts` make up one global batch.

    The global batches depend on the lengths, the seed and the epoch alone: on how many processes and accumulation
    steps a batch is spread changes nothing but its division. `accelerate` deals the micro-batches out in turn, so
    that every process makes the same number of steps. Each epoch has the same number of batches of the same shapes,
    holding other sentences of equal length, in another order but for the costliest one, which always comes first: if
    memory does not suffice, it fails at once.

    Args:
        source_lengths: Tokens of each source sentence.
        target_lengths: Tokens of each target sentence.
        source_tokens: Budget of source tokens of a global batch, padding included (paper: 25,000).
        target_tokens: Budget of target tokens of a global batch, padding included (paper: 25,000).
        num_parts: Number of processes times accumulation steps.
        seed: With the epoch, the only source of randomness.

    Raises:
        ValueError: A sentence alone exceeds the budget, or a batch has fewer sentences than parts.
    """

    def __init__(
        self,
        source_lengths: Sequence[int],
        target_lengths: Sequence[int],
        source_tokens: int = 25000,
        target_tokens: int = 25000,
        num_parts: int = 1,
        seed: int = 0,
    ) -> None:
        self.num_parts = num_parts
        self.seed = seed
        self.epoch = 0
        self.plan = plan_batches(source_lengths, target_lengths, source_tokens, target_tokens)
        self._starts = _with_at_least(num_parts, self.plan.starts)
        self.padding_share = self._padding_share()

    def __len__(self) -> int:
        return (len(self._starts) - 1) * self.num_parts

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        order = self._shuffle_equal_lengths(generator)
        for batch in self._batch_order(generator):
            members = order[self._starts[batch] : self._starts[batch + 1]]
            for part in np.array_split(members, self.num_parts):
                yield part.tolist()

    def _shuffle_equal_lengths(self, generator: np.random.Generator) -> np.ndarray:
        """`plan.order` with the pairs of equal source and target length in a new order."""
        shuffled = generator.permutation(len(self.plan.order))
        keys = (self.plan.source[shuffled], self.plan.target[shuffled])
        return self.plan.order[shuffled[np.lexsort(keys)]]

    def _batch_order(self, generator: np.random.Generator) -> np.ndarray:
        batches = generator.permutation(len(self._starts) - 1)
        costliest = np.argmax(self._costs())
        return np.concatenate(([costliest], batches[batches != costliest]))

    def _costs(self) -> np.ndarray:
        """Padded size of each global batch in tokens of both sides."""
        source, target = self._longest(self._starts)
        return np.diff(self._starts) * (source + target)

    def _longest(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return tuple(np.maximum.reduceat(side, starts[:-1]) for side in (self.plan.source, self.plan.target))

    def _padding_share(self) -> float:
        """Share of the tokens of an epoch's micro-batches, both sides, that is padding."""
        sizes = [
            len(part)
            for first, last in zip(self._starts[:-1], self._starts[1:], strict=True)
            for part in np.array_split(np.arange(last - first), self.num_parts)
        ]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        source, target = self._longest(starts)
        padded = int((np.asarray(sizes) * (source + target)).sum())
        return 1.0 - int(self.plan.source.sum() + self.plan.target.sum()) / padded


def _with_at_least(num_parts: int, starts: np.ndarray) -> np.ndarray:
    """Let the last batch, the remainder, have a sentence for each part, at the expense of the one before."""
    starts = starts.copy()
    if len(starts) > 2:
        starts[-2] = min(starts[-2], starts[-1] - num_parts)
    smallest = int(np.diff(starts).min())
    if smallest < num_parts:
        raise ValueError(
            f"source_tokens, target_tokens: a batch of {smallest} sentences cannot be divided among "
            f"{num_parts} processes and accumulation steps; raise the budget, or lower max_length"
        )
    return starts
