"""Division of global batches among processes and accumulation steps, so that none waits long for another."""

from itertools import pairwise

import numpy as np


# Time of a target token in units of a source token's: in the base model the decoder's layers and the logits have about
# twice the multiplications of the encoder's layers and of the keys and values made of its output.
_TARGET_COST = 2


def divide_batches(starts: np.ndarray, source: np.ndarray, target: np.ndarray, num_parts: int) -> np.ndarray:
    """Cut each batch into consecutive parts whose largest cost is as small as possible.

    A part costs its padded source tokens plus twice its padded target tokens: a step takes as long as
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
    source, target_costs = source.astype(np.int64), _TARGET_COST * target.astype(np.int64)
    parts = [
        first + _cheapest_parts(source[first:end], target_costs[first:end], num_parts)
        for first, end in pairwise(starts)
    ]
    return np.append(np.concatenate(parts), starts[-1])


def _cheapest_parts(source: np.ndarray, target: np.ndarray, num_parts: int) -> np.ndarray:
    """`[parts]` where the parts of one batch begin, given what the tokens of each side cost.

    Bisection of the largest cost: if it is too low, parts that are filled from the first on do not reach the end.
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
    """`[parts + 1]` where the parts begin, and the last one ends, if each takes as many pairs as its limit allows.

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
