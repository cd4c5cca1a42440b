"""Section 5.1 of the paper: sentence pairs "batched together by approximate sequence length", about 25,000 source and
25,000 target tokens in each batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .division import divide_batches


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

    @property
    def batches(self) -> list[np.ndarray]:
        """The indices of each global batch, those of the shortest sentences first."""
        return np.split(self.order, self.starts[1:-1])


def plan_batches(
    source_lengths: Sequence[int], target_lengths: Sequence[int], source_tokens: int, target_tokens: int
) -> BatchPlan:
    """Cut a corpus into global batches of at most so many tokens a side, padding included.

    Each batch takes as many sentences as fit. The last takes over up to half of those of the one before, for no update
    should rest on a sentence or two.

    Raises:
        ValueError: There are no sentences, or one alone exceeds the budget.
    """
    # A slice, because a column of a dataset is quick to read only at once.
    source, target = (np.asarray(lengths[:], dtype=np.int32) for lengths in (source_lengths, target_lengths))
    if not len(source) == len(target) > 0:
        raise ValueError(
            f"source_lengths, target_lengths: {len(source)} and {len(target)} of them; "
            f"give as many of each, and at least one"
        )
    budgets = (source_tokens, target_tokens)
    for name, lengths, budget in zip(("source_tokens", "target_tokens"), (source, target), budgets, strict=True):
        if lengths.max() > budget:
            raise ValueError(
                f"{name}: a budget of {budget} tokens cannot hold the longest sentence, of {lengths.max()} tokens; "
                f"raise it, or lower max_length"
            )
    order = np.lexsort((source, target))  # the last key is the first to sort by
    source, target = source[order], target[order]
    starts = [0]
    while starts[-1] < len(order):
        # Targets only grow from here on, so a window of as many as the first one's length allows holds the batch's end.
        window = slice(starts[-1], starts[-1] + target_tokens // max(int(target[starts[-1]]), 1))
        starts.append(starts[-1] + _count_that_fits(source[window], target[window], *budgets))
    if len(starts) > 2:
        half = (starts[-1] - starts[-3]) // 2
        share = _count_that_fits(source[-half:][::-1], target[-half:][::-1], *budgets)
        starts[-2] = min(starts[-2], starts[-1] - share)
    return BatchPlan(order, np.asarray(starts), source, target)


def _count_that_fits(source: np.ndarray, target: np.ndarray, source_tokens: int, target_tokens: int) -> int:
    """How many of the sentences, from the first on, make up a batch within the budget."""
    count = np.arange(1, len(source) + 1)
    padded_source = count * np.maximum.accumulate(source)
    padded_target = count * np.maximum.accumulate(target)
    # True up to the answer, and false behind it, for padded sizes grow.
    return int(((padded_source <= source_tokens) & (padded_target <= target_tokens)).sum())


class TokenBudgetBatchSampler:
    """Yields micro-batches of indices; consecutive groups of `num_parts` make up one global batch.

    The global batches depend on the lengths, the seed and the epoch alone: on how many processes and accumulation
    steps a batch is spread changes nothing but its division. `accelerate` deals the micro-batches out in turn, so
    that every process makes the same number of steps; the parts of a batch cost about the same time, so that none waits
    long for another (see `divide_batches`). Each epoch has the same number of batches of the same shapes,
    holding other sentences of equal length, in another order but for the costliest one, which always comes first: if
    memory does not suffice, it fails at once.

    Args:
        source_lengths: Tokens of each source sentence.
        target_lengths: Tokens of each target sentence.
        source_tokens: Budget of source tokens of a global batch, padding included (paper: 25,000).
        target_tokens: Budget of target tokens of a global batch, padding included (paper: 25,000).
        num_parts: Micro-batches of a global batch: the number of processes times accumulation steps, or, in elastic
            training, of virtual ranks.
        seed: With the epoch, the only source of randomness.

    Raises:
        ValueError: There are no sentences, one alone exceeds the budget, or a batch has fewer of them than parts.
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
        counts = np.diff(self.plan.starts)  # [batches]
        if counts.min() < num_parts:
            raise ValueError(
                f"source_tokens, target_tokens: a batch of {counts.min()} sentences cannot be divided into "
                f"{num_parts} micro-batches, one for each process and accumulation step, or virtual rank; raise the "
                f"budget, or lower gradient_accumulation_steps, virtual_ranks or max_length"
            )
        # [batches * parts + 1]
        self._part_starts = divide_batches(self.plan.starts, self.plan.source, self.plan.target, num_parts)
        tokens = self.plan.source.sum() + self.plan.target.sum()
        self.padding_share = float(1.0 - tokens / sum(sizes.sum() for sizes in self._padded_sizes(self._part_starts)))

    def __len__(self) -> int:
        return len(self._part_starts) - 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        order = self._shuffle_equal_lengths(generator)
        for batch in self._batch_order(generator):
            for part in range(batch * self.num_parts, (batch + 1) * self.num_parts):
                yield order[self._part_starts[part] : self._part_starts[part + 1]].tolist()

    def _shuffle_equal_lengths(self, generator: np.random.Generator) -> np.ndarray:
        """`plan.order` with the pairs of equal source and target length in a new order."""
        shuffled = generator.permutation(len(self.plan.order))
        keys = (self.plan.source[shuffled], self.plan.target[shuffled])
        return self.plan.order[shuffled[np.lexsort(keys)]]

    def _batch_order(self, generator: np.random.Generator) -> np.ndarray:
        batches = generator.permutation(len(self.plan.starts) - 1)
        source, target = self._padded_sizes(self.plan.starts)
        # In memory a target token, with its logits, costs about three times what a source token does. Global batches
        # are compared, though single parts are what must fit, for the order must not depend on the number of parts.
        costliest = np.argmax(source + 3 * target)
        return np.concatenate(([costliest], batches[batches != costliest]))

    def _padded_sizes(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Source and target tokens of each batch, padding included; `starts` is as in the plan."""
        source, target = (np.maximum.reduceat(side, starts[:-1]) for side in (self.plan.source, self.plan.target))
        return np.diff(starts) * source, np.diff(starts) * target
