"""Shortlists: candidate target tokens of each source token, learned from a parallel corpus."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase


# Limits of the aligned corpus: 8 bytes for each pair of a source and a target token of one sentence.
_SENTENCES = 200_000
_LONGEST = 100  # tokens of a sentence
_TOGETHER = 10_000  # sentences of a part

_CANDIDATES = 20  # for each source token
_LEAST = 1e-3  # probability of a candidate
_COMMON = 100  # target tokens that are always candidates, the most frequent

_ITERATIONS = 5  # of expectation maximisation

Rows = list[tuple[list[int], list[int]]]  # token ids of sentence pairs


@dataclass(frozen=True)
class Links:
    """Possible links between words of sentence pairs, `[links]` each.

    Attributes:
        pairs: Numbers of the linked pairs of words, in a list without repetitions.
        positions: Numbers of the linked target words, in the order of the text.
    """

    pairs: np.ndarray
    positions: np.ndarray


def learn_shortlist(tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """For each token, its likeliest translations by IBM Model 1, and the token itself, to copy names.

    Args:
        tokenizer: A tokenizer whose source and target tokens have the same ids.
        pairs: Sentences and their translations, preferably the model's training data; the first 200,000 are read.

    Returns:
        Candidates by source token: at most 20 and the token itself. The candidates of "", the 100 most frequent target
        tokens, may occur in any translation.

    Raises:
        ValueError: A token has white space inside, as in word-piece vocabularies.
    """
    size = len(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(range(size)))
    if any(set(" \t") & set(name) for name in names):
        raise ValueError("shortlist: CTranslate2 separates tokens by spaces; it needs a byte-pair vocabulary")
    links, frequencies = [], np.zeros(size, np.int64)
    for rows in _tokenized(tokenizer, islice(pairs, _SENTENCES)):
        targets = np.concatenate([target for _, target in rows])
        frequencies += np.bincount(targets, minlength=size)
        links.append(_links(rows, targets, size))
    common = np.argsort(-frequencies, kind="stable")[:_COMMON]
    candidates = _candidates(links, common, size)
    shortlist = {names[source]: [names[token] for token in targets] for source, targets in enumerate(candidates)}
    return {"": [names[token] for token in common.tolist()], **shortlist}


def _tokenized(tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]) -> Iterator[Rows]:
    """The pairs in parts, without pairs that have a blank or a long side."""
    pairs = iter(pairs)
    while part := list(islice(pairs, _TOGETHER)):
        texts = zip(*part, strict=True)
        sides = [tokenizer(list(side), add_special_tokens=False)["input_ids"] for side in texts]
        rows = [row for row in zip(*sides, strict=True) if all(0 < len(tokens) <= _LONGEST for tokens in row)]
        if rows:
            yield rows


def _links(rows: Rows, targets: np.ndarray, size: int) -> Links:
    """All links of these rows; a pair of tokens is `source * size + target`."""
    sources = np.concatenate([np.repeat(source, len(target)) for source, target in rows])  # [links]
    ends = np.cumsum([len(target) for _, target in rows])
    positions = [
        np.tile(np.arange(end - len(target), end), len(source))
        for (source, target), end in zip(rows, ends, strict=True)
    ]
    linked = np.concatenate(positions)  # [links] index of each link's target in `targets`
    return Links(sources * size + targets[linked], linked.astype(np.int32))


def _candidates(corpus: list[Links], common: np.ndarray, size: int) -> list[list[int]]:
    """For each source token, the token itself and its likeliest target tokens that are not common ones."""
    pairs = reduce(np.union1d, (links.pairs for links in corpus), np.empty(0, np.int64))  # [pairs], ascending
    sources, targets = np.divmod(pairs, size)
    numbered = [Links(np.searchsorted(pairs, links.pairs).astype(np.int32), links.positions) for links in corpus]
    probabilities = fit_model_1(numbered, sources)
    is_likely = (probabilities >= _LEAST) & ~np.isin(targets, common) & (sources != targets)
    likely = np.flatnonzero(is_likely)  # numbers of pairs
    likely = likely[np.lexsort((-probabilities[likely], sources[likely]))]  # by source, the likeliest first
    candidates: list[list[int]] = [[token] for token in range(size)]
    for source, target in zip(sources[likely].tolist(), targets[likely].tolist(), strict=True):
        if len(candidates[source]) <= _CANDIDATES:
            candidates[source].append(target)
    return candidates


def fit_model_1(corpus: Sequence[Links], sources: np.ndarray) -> np.ndarray:
    """Translation probabilities of IBM Model 1 (Brown et al., 1993) by expectation maximisation, `[pairs]`.

    Args:
        corpus: The links of a corpus, in parts.
        sources: Source word of each pair, `[pairs]`.
    """
    probabilities = np.ones(len(sources))
    for _ in range(_ITERATIONS):
        counts = np.zeros(len(sources))
        for links in corpus:
            weights = probabilities[links.pairs]  # the posterior, up to a constant for each target word
            shares = weights / np.bincount(links.positions, weights)[links.positions]
            counts += np.bincount(links.pairs, shares, len(sources))
        probabilities = counts / np.bincount(sources, counts)[sources]
    return probabilities
