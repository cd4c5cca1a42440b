"""IBM Model 1 (Brown et al., 1993): how probable a word of the target is as translation of a word of the source."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


_ITERATIONS = 5


@dataclass(frozen=True)
class Links:
    """Possible links between words of sentence pairs, `[links]` each.

    Attributes:
        pairs: Numbers of the linked pairs of words, in a list without repetitions.
        places: Numbers of the linked target words, in the order of the text.
    """

    pairs: np.ndarray
    places: np.ndarray


def fit_model_1(corpus: Sequence[Links], sources: np.ndarray) -> np.ndarray:
    """Translation probabilities by expectation maximisation, `[pairs]`.

    Args:
        corpus: The links of a corpus, in parts.
        sources: Source word of each pair, `[pairs]`.
    """
    probabilities = np.ones(len(sources))
    for _ in range(_ITERATIONS):
        counts = np.zeros(len(sources))
        for links in corpus:
            weights = probabilities[links.pairs]  # of the posterior, up to a constant for each place
            shares = weights / np.bincount(links.places, weights)[links.places]
            counts += np.bincount(links.pairs, shares, len(sources))
        probabilities = counts / np.bincount(sources, counts)[sources]
    return probabilities
