"""Training pairs (5.1) whose sub-words are sampled anew in each epoch, by BPE-dropout.

A sample depends only on the seed, the epoch and the index of a pair, not on the process or worker that reads it.
"""

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeAlias

import numpy as np
import torch
from datasets import Dataset

from .batching import TokenBudgetBatchSampler
from .bpe_dropout import BpeDropout
from .corpora import spread


_SIDES = ("input_ids", "labels")
_MEASURED = 2000  # pairs on which lengths are measured
_DEVIATIONS = 2.5  # from the mean length to the bound

Pair: TypeAlias = dict[str, list[int]]


class ResampledPairs(torch.utils.data.Dataset):
    """Training pairs whose sub-words are sampled anew in each epoch; the index of one is (epoch, row).

    No side gets longer than its bound, so that batches can be planned. A side that would is drawn again with half the
    probability, then with a quarter; after that it stays as the tokenizer encodes it. The bounds lie 2.5 standard
    deviations above the mean length, as measured on 2,000 pairs.

    Args:
        pairs: Encoded pairs; only `input_ids` and `labels` are read.
        lengths: Tokens of each source and of each target.
        limits: Upper limits of the bounds of sources and of targets; no bound is below the length itself.
        dropout: Samples the sub-words.
        seed: With epoch and row, the only source of randomness.

    Attributes:
        bounds: Greatest number of tokens of each source and of each target, in any epoch.
    """

    def __init__(
        self,
        pairs: Dataset,
        lengths: tuple[Sequence[int], Sequence[int]],
        limits: tuple[float, float],
        dropout: BpeDropout,
        seed: int,
    ) -> None:
        self.pairs = pairs.select_columns([*_SIDES])
        self.dropout = dropout
        self.seed = seed
        rows = spread(len(pairs), _MEASURED)
        measured = [
            self._resample(pair, 0, row, (math.inf, math.inf))
            for row, pair in zip(rows.tolist(), self.pairs.__getitems__(rows.tolist()), strict=True)
        ]
        source, target = (
            _length_bounds(np.asarray(before[:]), rows, np.asarray([len(pair[side]) for pair in measured]), limit)
            for side, before, limit in zip(_SIDES, lengths, limits, strict=True)
        )
        self.bounds = source, target

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: tuple[int, int]) -> Pair:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[tuple[int, int]]) -> list[Pair]:
        """The pairs of a micro-batch."""
        pairs, (source, target) = self.pairs.__getitems__([row for _, row in indices]), self.bounds
        return [
            self._resample(pair, epoch, row, (source[row], target[row]))
            for (epoch, row), pair in zip(indices, pairs, strict=True)
        ]

    def _resample(self, pair: Pair, epoch: int, row: int, bounds: tuple[float, float]) -> Pair:
        generator = Random(f"{self.seed} {epoch} {row}")
        return {
            side: self._draw(pair[side], bound, generator)
            if side == "input_ids" or self.dropout.samples_targets
            else pair[side]
            for side, bound in zip(_SIDES, bounds, strict=True)
        }

    def _draw(self, ids: list[int], bound: float, generator: Random) -> list[int]:
        for share in (1.0, 0.5, 0.25):
            sampled = self.dropout.sample(ids, generator, share * self.dropout.probability)
            if len(sampled) <= bound:
                return sampled
        return ids


def _length_bounds(lengths: np.ndarray, rows: np.ndarray, sampled: np.ndarray, limit: float) -> np.ndarray:
    """A bound for each length, not below it.

    A length is the sum over words, so that its standard deviation grows with its square root.

    Args:
        lengths: `[pairs]` lengths as the tokenizer encodes.
        rows: `[measured]` the pairs that were sampled.
        sampled: `[measured]` their lengths after sampling.
        limit: No bound is above it, but for a length that is.
    """
    before = lengths[rows]
    growth = sampled.sum() / before.sum()
    deviation = np.sqrt(np.mean((sampled - growth * before) ** 2 / np.maximum(before, 1)))
    bounds = np.ceil(growth * lengths + _DEVIATIONS * deviation * np.sqrt(lengths))
    return np.clip(bounds, lengths, np.maximum(lengths, limit)).astype(np.int64)


class EpochBatches:
    """Micro-batches of `ResampledPairs`: each row with the epoch of the batch sampler."""

    def __init__(self, batches: TokenBudgetBatchSampler) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch = self.batches.epoch
        for batch in self.batches:
            yield [(epoch, row) for row in batch]
