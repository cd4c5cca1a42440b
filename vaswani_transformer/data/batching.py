"""Section 5.1 of the paper: batches of sentence pairs of similar length, about 25,000 tokens on each side."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F


# Time of a target token relative to a source token: in the base model the decoder's layers and the logits have about
# twice the multiplications of the encoder's layers and of the keys and values computed from its output.
_TARGET_COST = 2


def divide_batches(starts: np.ndarray, source: np.ndarray, target: np.ndarray, num_parts: int) -> np.ndarray:
    """Cut each batch into consecutive parts whose largest cost is as small as possible.

    A part costs its padded source tokens plus twice its padded target tokens; a step takes as long as its costliest
    part. Every part has at least one pair.

    Args:
        starts: `[batches + 1]` where each batch begins; each has at least `num_parts` pairs.
        source: `[pairs]` source lengths.
        target: `[pairs]` target lengths, ascending within each batch.
        num_parts: Parts of each batch.

    Returns:
        `[batches * num_parts + 1]` where each part begins; the last entry is the number of pairs.
    """
    if num_parts == 1:
        return starts
    source, target_costs = source.astype(np.int64), _TARGET_COST * target.astype(np.int64)
    parts = [
        first + _cheapest_parts(source[first:end], target_costs[first:end], num_parts)
        for first, end in pairwise(starts)
    ]
    return np.append(np.concatenate(parts), starts[-1])


def _cheapest_parts(source: np.ndarray, target: np.ndarray, num_parts: int) -> np.ndarray:
    """`[parts]` where the parts of one batch begin, given the cost of the tokens of each side.

    Bisection of the largest cost: if it is too low, parts filled one after another do not reach the end.
    """
    too_low = (source + target).sum() // num_parts - 1  # without padding
    enough = -(-len(source) // num_parts) * (source.max() + target.max())  # parts with equal counts cost no more
    while enough - too_low > 1:
        middle = (too_low + enough) // 2
        if _fill(source, target, num_parts, middle)[-1] == len(source):
            enough = middle
        else:
            too_low = middle
    return _fill(source, target, num_parts, enough)[:-1]


def _fill(source: np.ndarray, target: np.ndarray, num_parts: int, limit: int) -> np.ndarray:
    """Fill parts greedily up to `limit`. Returns `[parts + 1]` boundaries of the parts.

    Args:
        source: `[pairs]` costs of the source.
        target: `[pairs]` costs of the target, ascending.
        num_parts: Number of parts; each leaves a pair for every later one.
        limit: Largest cost of a part.
    """
    starts = [0]
    most = limit // (source + target).min()  # pairs of a part
    for parts_left in reversed(range(num_parts)):
        taken = slice(starts[-1], min(starts[-1] + most, len(source) - parts_left))
        longest = np.maximum.accumulate(source[taken]) + target[taken]
        costs = np.arange(1, len(longest) + 1) * longest  # of parts of 1, 2, ... pairs
        starts.append(starts[-1] + int(np.searchsorted(costs, limit, side="right")))
    return np.asarray(starts)


@dataclass(frozen=True)
class MixedCorpus:
    """Rows of the training set from which pairs are drawn.

    Attributes:
        first: The first of its rows, which follow each other.
        pairs: Number of its rows.
        drawn: Pairs drawn for each epoch; some of them repeatedly if the corpus has fewer.
    """

    first: int
    pairs: int
    drawn: int


class Mixture:
    """The rows of an epoch: all of the training corpus, and pairs drawn from other corpora.

    A draw is a systematic sample (Madow & Madow, 1944) of the pairs sorted by size, equal ones in random order. Place p
    of n gets one of the pairs p * N / n to (p + 1) * N / n of N. The largest pair that a place can get is therefore
    known in advance, and batches planned for these pairs fit the pairs of every epoch. Each pair is drawn n / N times,
    rounded down or up; the mean over epochs is exact.

    Args:
        sizes: `[rows]` sizes of all pairs, as in `BatchPlan`.
        mixed: Corpora to draw from; their rows follow the training corpus.

    Attributes:
        largest: `[places]` row with the largest pair that each place of an epoch can get.
    """

    def __init__(self, sizes: np.ndarray, mixed: Sequence[MixedCorpus] = ()) -> None:
        self._mixed = mixed
        self._train = np.arange(mixed[0].first if mixed else len(sizes))
        self._sizes = [sizes[corpus.first : corpus.first + corpus.pairs] for corpus in mixed]
        self.largest = self._rows([np.argsort(-each, kind="stable") for each in self._sizes], [0] * len(mixed))

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """`[places]` row at each place of an epoch."""
        orders, starts = [], []
        for sizes in self._sizes:
            shuffled = generator.permutation(len(sizes))
            orders.append(shuffled[np.argsort(-sizes[shuffled], kind="stable")])
            starts.append(int(generator.integers(len(sizes))))
        return self._rows(orders, starts)

    def _rows(self, orders: Sequence[np.ndarray], starts: Sequence[int]) -> np.ndarray:
        drawn = [
            corpus.first + order[(np.arange(corpus.drawn) * corpus.pairs + start) // corpus.drawn]
            for corpus, order, start in zip(self._mixed, orders, starts, strict=True)
        ]
        return np.concatenate([self._train, *drawn])


@dataclass(frozen=True)
class BatchPlan:
    """Sentence pairs in windows of similar size, and the number of pairs in each global batch.

    A pair's size is the larger of source length / source budget and target length / target budget. The batches of a
    window have as many pairs as fit with its largest pair, so any division of the window's pairs among them fits.

    Attributes:
        order: `[pairs]` indices of the pairs, the largest first.
        windows: `[windows + 1]` where each window begins in `order`; the last entry is the number of pairs.
        starts: `[batches + 1]` where each batch begins in `order`; the last entry is the number of pairs.
    """

    order: np.ndarray
    windows: np.ndarray
    starts: np.ndarray

    @property
    def batches(self) -> list[np.ndarray]:
        """The indices of each global batch before any shuffling, the shortest sentences first."""
        return np.split(self.order, self.starts[1:-1])[::-1]


def plan_batches(
    source_lengths: Sequence[int] | np.ndarray,
    target_lengths: Sequence[int] | np.ndarray,
    source_tokens: int,
    target_tokens: int,
    window: int = 1,
    max_windows: int | None = None,
) -> BatchPlan:
    """Divide a corpus into global batches within a budget of tokens for each side, padding included.

    Args:
        source_lengths: Tokens of each source sentence.
        target_lengths: Tokens of each target sentence.
        source_tokens: Budget of source tokens of a batch.
        target_tokens: Budget of target tokens of a batch.
        window: Number of batches that exchange pairs. The last window, with the shortest sentences, may have more
            batches, or fewer.
        max_windows: Upper limit of the number of windows. If there would be more, windows have more batches. The
            windows are then cut so that each has about the same amount of padding.

    Raises:
        ValueError: There are no sentences, one alone exceeds the budget, or the window is below 1.
    """
    if window < 1:
        raise ValueError(f"batch_window: must be at least 1, is {window}")
    source, target = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
    if not len(source) == len(target) > 0:
        raise ValueError(f"lengths: {len(source)} of sources and {len(target)} of targets; give as many, at least one")
    budgets = (source_tokens, target_tokens)
    for name, lengths, budget in zip(("source_tokens", "target_tokens"), (source, target), budgets, strict=True):
        if lengths.max() > budget:
            raise ValueError(
                f"{name}: a budget of {budget} tokens cannot hold the longest sentence, of {lengths.max()} tokens; "
                f"raise it, or lower max_length"
            )
    sizes = pair_sizes(source, target, source_tokens, target_tokens)
    order = np.lexsort((-source, -target, -sizes))  # the last key is the primary one
    sizes, capacity = sizes[order], source_tokens * target_tokens
    windows, starts = _cut_windows(sizes, capacity, window)
    if max_windows is not None and len(windows) - 1 > max_windows:
        one_window = int(sizes[0]) * len(sizes)

        def are_few(padding: int) -> bool:
            return len(_cut_windows(sizes, capacity, window, padding)[0]) - 1 <= max_windows

        padding = bisect_left(range(one_window), True, key=are_few)
        windows, starts = _cut_windows(sizes, capacity, window, padding)
    return BatchPlan(order, np.asarray(windows), np.asarray(starts))


def _cut_windows(
    sizes: np.ndarray, capacity: int, window: int, padding: int | None = None
) -> tuple[list[int], list[int]]:
    """`[windows + 1]` where each window begins, and `[batches + 1]` where each batch begins.

    Args:
        sizes: `[pairs]` descending sizes.
        capacity: Largest size of a batch, the number of its pairs times the size of the window's largest pair.
        window: Batches of a window.
        padding: A window gets more batches until raising the sizes of its pairs to the largest would add more than
            this to their sum.
    """
    until = np.append(0, np.cumsum(sizes))  # sum of the sizes before each pair
    windows, starts = [0], [0]
    while windows[-1] < len(sizes):
        first = windows[-1]
        count = capacity // int(sizes[first])  # pairs of a batch
        end = first + count * window
        if padding is not None:
            ends = np.arange(first, len(sizes) + 1, count)
            paddings = (ends - first) * sizes[first] - (until[ends] - until[first])
            end = max(end, int(ends[np.searchsorted(paddings, padding, side="right") - 1]))
        if end + count > len(sizes):  # the rest would not fill a batch of these pairs
            end = len(sizes)
        batches = -(-(end - first) // count)
        windows.append(end)
        starts += [first + (end - first) * number // batches for number in range(1, batches + 1)]
    return windows, starts


def pair_sizes(source: np.ndarray, target: np.ndarray, source_tokens: int, target_tokens: int) -> np.ndarray:
    """`[pairs]` sizes as in `BatchPlan`, times both budgets: n pairs of a size fit if n * size <= their product."""
    return np.maximum(np.maximum(source * target_tokens, target * source_tokens), 1)


class TokenBudgetBatchSampler:
    """Yields micro-batches of indices; consecutive groups of `num_parts` make up one global batch.

    - Global batches depend only on the lengths, the seed and the epoch. The number of processes and accumulation steps
      changes only how a batch is divided.
    - `accelerate` deals the micro-batches out in turn, so that every process makes the same number of steps. The parts
      of a batch cost about the same time, so that no process waits long for another (see `divide_batches`).
    - All epochs have the same number of batches, with the same numbers of pairs. An epoch exchanges the pairs within
      windows of similar length: two pairs of a batch meet again in about 1 of every `window` epochs. It draws other
      pairs of the same sizes from the corpora that are mixed in (see `Mixture`).
    - The costliest batch opens the first epoch: if memory is insufficient, training fails at once.
    - With `max_shapes`, micro-batches can be padded to few shapes, the same in all epochs. The parts of a batch then
      have equal numbers of pairs.

    Args:
        source_lengths, target_lengths: Tokens of each sentence.
        source_tokens, target_tokens: Budgets of tokens of a global batch, padding included (paper: 25,000).
        num_parts: Micro-batches of a global batch: the number of processes times accumulation steps, or, in elastic
            training, of virtual ranks.
        seed: With the epoch, the only source of randomness.
        window: Number of batches that exchange pairs of similar length each epoch: the option `batch_window`. Larger
            windows mix better; smaller ones pad less.
        mixed: Corpora to draw pairs from, after the training corpus; by default every pair occurs once an epoch.
        max_shapes: Upper limit of the number of shapes, for a step that is compiled or captured for each of them.

    Attributes:
        shapes: `[shapes, 3]` sentences, source length and target length to pad micro-batches to; None without
            `max_shapes`.
        padding_share: Share of padding among the tokens of the first epoch's micro-batches.

    Raises:
        ValueError: There are no sentences, one alone exceeds the budget, or a batch has fewer sentences than parts.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        source_tokens: int = 25000,
        target_tokens: int = 25000,
        num_parts: int = 1,
        seed: int = 0,
        window: int = 4,
        mixed: Sequence[MixedCorpus] = (),
        max_shapes: int | None = None,
    ) -> None:
        self.num_parts = num_parts
        self.seed = seed
        self.epoch = 0
        # A slice: reading a column of a dataset row by row is slow.
        source, target = (np.asarray(lengths[:], dtype=np.int64) for lengths in (source_lengths, target_lengths))
        self._source, self._target = source.astype(np.int32), target.astype(np.int32)
        sizes = pair_sizes(source, target, source_tokens, target_tokens)
        self._mixture = Mixture(sizes, mixed)
        rows = self._mixture.largest
        self.plan = plan_batches(source[rows], target[rows], source_tokens, target_tokens, window, max_shapes)
        smallest = np.diff(self.plan.starts).min()
        if smallest < num_parts:
            raise ValueError(
                f"source_tokens, target_tokens: a batch of {smallest} sentences cannot be divided into "
                f"{num_parts} micro-batches, one for each process and accumulation step, or virtual rank; raise the "
                f"budget, or lower processes, gradient_accumulation_steps, virtual_ranks or max_length"
            )
        self.shapes = None if max_shapes is None else self._window_shapes(sizes)
        pairs, part_starts, _ = self._deal(0)
        tokens = self._source[pairs].sum() + self._target[pairs].sum()
        count, longest_source, longest_target = self.pad(self._sizes(pairs, part_starts)).T
        self.padding_share = 1.0 - float(tokens) / float((count * (longest_source + longest_target)).sum())

    def __len__(self) -> int:
        return self.batches * self.num_parts

    @property
    def batches(self) -> int:
        """Number of global batches in an epoch."""
        return len(self.plan.starts) - 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        pairs, part_starts, batches = self._deal(self.epoch)
        parts = np.split(pairs, part_starts[1:-1])
        for batch in batches:
            yield from (part.tolist() for part in parts[batch * self.num_parts : (batch + 1) * self.num_parts])

    def _deal(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The batches of an epoch.

        Returns:
            `[pairs]` indices of the sentence pairs, batch by batch, each batch sorted by target length;
            `[batches * parts + 1]` where each micro-batch begins in them; `[batches]` the batches in the order of
            training.
        """
        generator = np.random.default_rng((self.seed, epoch))
        starts = self.plan.starts
        windows = np.repeat(np.arange(len(self.plan.windows) - 1), np.diff(self.plan.windows))  # [pairs]
        shuffled = generator.permutation(len(windows))
        places = self.plan.order[shuffled[np.argsort(windows[shuffled], kind="stable")]]
        pairs = self._mixture.draw(np.random.default_rng((self.seed, epoch, 1)))[places]
        numbers = np.repeat(np.arange(len(starts) - 1), np.diff(starts))  # [pairs]
        pairs = pairs[np.lexsort((self._source[pairs], self._target[pairs], numbers))]
        if self.shapes is None:
            part_starts = divide_batches(starts, self._source[pairs], self._target[pairs], self.num_parts)
        else:
            parts = np.arange(self.num_parts)
            equal = starts[:-1, None] + np.diff(starts)[:, None] * parts // self.num_parts  # [batches, parts]
            part_starts = np.append(equal, starts[-1])
        batches = generator.permutation(len(starts) - 1)
        if epoch == 0:
            count, source, target = self._sizes(pairs, starts).T
            # A target token, with its logits, costs about three times the memory of a source token. Global batches are
            # compared, not their parts, since the order must not depend on the number of parts.
            costliest = np.argmax(count * (source + 3 * target))
            batches = np.concatenate(([costliest], batches[batches != costliest]))
        return pairs, part_starts, batches

    def _sizes(self, pairs: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """`[batches, 3]` sentences, longest source and longest target of each batch or part."""
        longest = [np.maximum.reduceat(side[pairs], starts[:-1]) for side in (self._source, self._target)]
        return np.stack([np.diff(starts), *longest], axis=-1).astype(np.int64)

    def _window_shapes(self, sizes: np.ndarray) -> np.ndarray:
        """`[windows, 3]` the shape that holds every micro-batch of a window in any epoch."""
        plan, by_size = self.plan, np.argsort(sizes)
        largest = sizes[self._mixture.largest][plan.order[plan.windows[:-1]]]
        last = np.searchsorted(sizes[by_size], largest, side="right") - 1  # of the pairs that a window may draw
        longest = [np.maximum.accumulate(side[by_size])[last] for side in (self._source, self._target)]
        counts = np.maximum.reduceat(np.diff(plan.starts), np.searchsorted(plan.starts, plan.windows[:-1]))
        return np.stack([-(-counts // self.num_parts), *longest], axis=-1)

    def pad(self, sizes: np.ndarray) -> np.ndarray:
        """The smallest of `shapes` that holds each micro-batch of `sizes` `[..., 3]`; the sizes themselves without."""
        if self.shapes is None:
            return sizes
        holds = (self.shapes >= sizes[..., None, :]).all(-1)  # [..., shapes]
        tokens = self.shapes[:, 0] * self.shapes[:, 1:].sum(-1)
        return self.shapes[np.where(holds, tokens, tokens.max() + 1).argmin(-1)]


@dataclass(frozen=True)
class PaddedCollator:
    """Pads micro-batches to the shapes of their sampler.

    Missing sentences are copies of the first one, whose labels the loss ignores: attention would not be defined in a
    sentence without tokens.

    Attributes:
        collate: Makes a micro-batch of rows with `input_ids` and `labels`.
        sampler: A sampler with `max_shapes`.
        pad_token_id: Pads tokens on the right.
    """

    collate: Callable[[list], Any]
    sampler: TokenBudgetBatchSampler
    pad_token_id: int

    def __call__(self, rows: list) -> dict[str, torch.Tensor]:
        size = [len(rows), *(max(len(row[name]) for row in rows) for name in ("input_ids", "labels"))]
        count, source, target = self.sampler.pad(np.array(size)).tolist()
        ignored = {**rows[0], "labels": [-100] * len(rows[0]["labels"])}
        batch = self.collate([*rows, *[ignored] * (count - len(rows))])
        sides = {
            "input_ids": (source, self.pad_token_id),
            "attention_mask": (source, 0),
            "decoder_input_ids": (target, self.pad_token_id),
            "labels": (target, -100),
        }
        for name, (length, padding) in sides.items():
            if name in batch:
                batch[name] = F.pad(batch[name], (0, length - batch[name].shape[1]), value=padding)
        return batch
