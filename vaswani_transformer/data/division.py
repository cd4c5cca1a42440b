"""Division of global batches among processes and accumulation steps, so that none waits long for another."""

import numpy as np


# Time of a target token in units of a source token's: in the base model the decoder's layers and the logits have about
# twice the multiplications of the encoder's layers and of the keys and values made of its output.
TARGET_COST = 2
PAIRS_AT_ONCE = 2**20  # bounds the memory of a table with a row for each power of two


def divide_batches(starts: np.ndarray, source: np.ndarray, target: np.ndarray, num_parts: int) -> np.ndarray:
    """Cut each batch into consecutive parts whose largest cost is as small as possible.

    A part costs its padded source tokens plus `TARGET_COST` times its padded target tokens: a step takes as long as
    its costliest part. Every part has at least one pair.

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
    cuts = [0]
    parts = []
    while cuts[-1] < len(starts) - 1:
        end = int(np.searchsorted(starts, starts[cuts[-1]] + PAIRS_AT_ONCE, side="right")) - 1
        cuts.append(max(end, cuts[-1] + 1))
        batches = starts[cuts[-2] : cuts[-1] + 1]
        pairs = slice(batches[0], batches[-1])
        division = _Division(batches - batches[0], source[pairs], target[pairs], num_parts)
        parts.append(division.cheapest().ravel() + batches[0])
    return np.append(np.concatenate(parts), starts[-1])


class _Division:
    """Batches small enough in number to be divided at once; arguments as above."""

    def __init__(self, starts: np.ndarray, source: np.ndarray, target: np.ndarray, num_parts: int) -> None:
        self.firsts, self.ends = starts[:-1], starts[1:]  # [batches]
        self.target = target.astype(np.int64)
        self.num_parts = num_parts
        costs = source + TARGET_COST * self.target  # [pairs] without padding
        self.too_small = np.add.reduceat(costs, self.firsts) // num_parts - 1  # [batches]
        counts = -(-(self.ends - self.firsts) // num_parts)
        dearest = np.maximum.reduceat(source, self.firsts) + TARGET_COST * np.maximum.reduceat(target, self.firsts)
        self.enough = counts * dearest  # [batches] the largest cost of parts of equal counts, or more
        longest_part = np.minimum(self.ends - self.firsts, self.enough // np.minimum.reduceat(costs, self.firsts)).max()
        # Row k has the maximum of the 2**k sources from each pair on; where fewer are left, it is not read.
        self.maxima = [source.astype(np.int64)]
        for power in range(int(longest_part).bit_length() - 1):
            row = self.maxima[-1].copy()
            row[: -(2**power)] = np.maximum(row[: -(2**power)], row[2**power :])
            self.maxima.append(row)

    def cheapest(self) -> np.ndarray:
        """`[batches, parts]` where the parts begin if the largest cost is the smallest possible.

        Bisection of that cost: below it, parts that are filled from the first on do not reach the batch's end.
        """
        low, high = self.too_small, self.enough
        while (high - low > 1).any():
            middle = (low + high) // 2
            enough = self._fill(middle)[:, -1] == self.ends
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return self._fill(high)[:, :-1]

    def _fill(self, limits: np.ndarray) -> np.ndarray:
        """`[batches, parts + 1]` where the parts begin, and the last one ends, if each takes what its limit allows."""
        starts = [self.firsts]
        for later in reversed(range(self.num_parts)):
            starts.append(self._farthest(starts[-1], self.ends - later, limits))
        return np.stack(starts, axis=1)

    def _farthest(self, firsts: np.ndarray, lasts: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """`[batches]` the largest ends, up to `lasts`, of parts from `firsts` on within the limits of their cost."""
        ends, longest = firsts, np.zeros_like(firsts)
        for power in reversed(range(len(self.maxima))):
            further = ends + 2**power
            inside = further <= lasts
            sources = np.maximum(longest, self.maxima[power][np.where(inside, ends, 0)])
            targets = self.target[np.where(inside, further, 1) - 1]
            fits = inside & ((further - firsts) * (sources + TARGET_COST * targets) <= limits)
            ends, longest = np.where(fits, further, ends), np.where(fits, sources, longest)
        return ends
