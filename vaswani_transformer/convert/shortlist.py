"""Shortlists: for each source token the target tokens that it may become, learned from a parallel corpus."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase


# Limits of what is aligned: 8 bytes for each pair of a source and a target token of one sentence.
_SENTENCES = 200_000
_LONGEST = 100  # tokens of a sentence
_TOGETHER = 10_000  # sentences

_ITERATIONS = 5
_CANDIDATES = 20  # for each source token
_LEAST = 1e-3  # probability of a candidate
_COMMON = 100  # target tokens that are always candidates, the most frequent


def learn_shortlist(tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """For each token its likeliest translations by IBM Model 1 (Brown et al., 1993), and itself, to copy names.

    Args:
        tokenizer: A tokenizer whose source and target tokens have the same ids.
        pairs: Sentences and their translations, best those that the model was trained on; 200,000 of them are read.

    Returns:
        Candidates by source token: at most 20 and itself. Those of "" may occur in any translation: the 100 most
        frequent target tokens.

    Raises:
        ValueError: A token has white space inside, as in word-piece vocabularies.
    """
    size = len(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(range(size)))
    if any(set(" \t") & set(name) for name in names):
        raise ValueError("shortlist: CTranslate2 separates tokens by spaces; it needs a byte-pair vocabulary")
    links, keys, frequencies = _links(tokenizer, islice(pairs, _SENTENCES), size)
    probabilities = _model_1(links, keys // size, size)
    common = np.argsort(-frequencies, kind="stable")[:_COMMON]
    is_other = ~np.isin(keys % size, common) & (keys // size != keys % size)
    likely = np.flatnonzero((probabilities >= _LEAST) & is_other)
    likely = likely[np.lexsort((-probabilities[likely], keys[likely] // size))]  # by source, the likeliest first
    candidates: list[list[int]] = [[token] for token in range(size)]
    for source, target in zip(*(part.tolist() for part in np.divmod(keys[likely], size)), strict=True):
        if len(candidates[source]) <= _CANDIDATES:
            candidates[source].append(target)
    shortlist = {names[source]: [names[token] for token in targets] for source, targets in enumerate(candidates)}
    return {"": [names[token] for token in common.tolist()], **shortlist}


def _links(
    tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]], size: int
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """All links of a source and a target token of one sentence.

    Returns:
        For each part of the corpus, the numbers of its links in `keys`, and the place of the target token of each;
        `keys`, the different links as `source * size + target`, in order; how often each target token occurs.
    """
    parts, keys, frequencies = [], np.empty(0, np.int64), np.zeros(size, np.int64)
    pairs = iter(pairs)
    while part := list(islice(pairs, _TOGETHER)):
        texts = zip(*part, strict=True)
        sides = [tokenizer(list(side), add_special_tokens=False)["input_ids"] for side in texts]
        rows = [row for row in zip(*sides, strict=True) if all(0 < len(tokens) <= _LONGEST for tokens in row)]
        if not rows:
            continue
        targets = np.concatenate([target for _, target in rows])
        ends = np.cumsum([len(target) for _, target in rows])
        places = np.concatenate(
            [
                np.tile(np.arange(end - len(target), end), len(source))
                for (source, target), end in zip(rows, ends, strict=True)
            ]
        )
        sources = np.concatenate([np.repeat(source, len(target)) for source, target in rows])
        parts.append((sources * size + targets[places], places.astype(np.int32)))
        keys = np.union1d(keys, parts[-1][0])
        frequencies += np.bincount(targets, minlength=size)
    return [(np.searchsorted(keys, link).astype(np.int32), places) for link, places in parts], keys, frequencies


def _model_1(links: Sequence[tuple[np.ndarray, np.ndarray]], sources: np.ndarray, size: int) -> np.ndarray:
    """Translation probabilities by expectation maximisation, one for each of `keys`; `sources` are their tokens."""
    probabilities = np.ones(len(sources))
    for _ in range(_ITERATIONS):
        counts = np.zeros(len(sources))
        for numbers, places in links:
            likelihoods = probabilities[numbers]
            likelihoods /= np.bincount(places, likelihoods)[places]
            counts += np.bincount(numbers, likelihoods, len(sources))
        probabilities = counts / np.bincount(sources, counts, size)[sources]
    return probabilities
