"""Corpora that are mixed into a training: each epoch draws other pairs from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MixedCorpus:
    """Rows of the training set from which pairs are drawn.

    Attributes:
        first: The first of its rows, which follow each other.
        pairs: Number of its rows.
        drawn: Pairs drawn for each epoch; some of them repeatedly if it has fewer.
    """

    first: int
    pairs: int
    drawn: int


class Mixture:
    """The rows of an epoch: all of the training corpus, and pairs drawn from other corpora.

    A draw is a systematic sample (Madow & Madow, 1944) of the pairs sorted by size, equal ones in random order. Place p
    of n gets one of the pairs p * N / n to (p + 1) * N / n of N. The largest pair that a place can get is therefore
    known in advance, and batches planned for these pairs hold the pairs of every epoch. Each pair is drawn n / N times,
    rounded down or up; the mean over epochs is exact.

    Args:
        sizes: `[rows]` sizes of all pairs, as in `BatchPlan`.
        mixed: Corpora to draw from, behind the training corpus.

    Attributes:
        largest: `[places]` row with the largest pair that each place of an epoch can get.
    """

    def __init__(self, sizes: np.ndarray, mixed: Sequence[MixedCorpus] = ()) -> None:
        self._mixed = mixed
        self._train = np.arange(mixed[0].first if mixed else len(sizes))
        self._sizes = [sizes[corpus.first : corpus.first + corpus.pairs] for corpus in mixed]
        self.largest = self._rows([np.argsort(-each, kind="stable") for each in self._sizes], [0] * len(mixed))

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """`[places]` row in each place of an epoch."""
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
