"""Initial embeddings from the co-occurrence of tokens (opt-in); the authors' are random (3.4)."""

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from ..data.corpora import evenly_spaced


# Share of co-occurrence in an embedding. Random parts fill up its norm, which is about 1.
_SHARE = 0.95
_MOST_PAIRS = 100_000
# More vectors and iterations bring the approximate decomposition closer to the exact one.
_MORE_VECTORS, _ITERATIONS = 33, 3


def cooccurrence_embeddings(pairs: Dataset, vocabulary: int, d_model: int, seed: int) -> torch.Tensor:
    """Unit vectors of tokens, similar for tokens of the same sentence pairs: words of a topic, and translations.

    They are approximate left singular vectors of a matrix of tokens and sentence pairs, source and target together,
    times the roots of the singular values: latent semantic analysis in two languages (Dumais et al. 1997), with another
    weighting. Where a token occurs in a pair, the matrix has `(number of pairs with the token)^-0.5 * (sum of that over
    the pair's tokens)^-0.5`; elsewhere zero. The first singular vector is left out, since it reflects mostly frequency.
    A random rotation spreads the strong components over all coordinates.

    Args:
        pairs: Rows with `input_ids` and `labels`; at most 100,000 of them, evenly spaced, are used.
        vocabulary: Number of tokens.
        d_model: Width of their embeddings.
        seed: Seed of the rotation.

    Returns:
        `[vocabulary, d_model]`; zeros for tokens that do not occur; all zeros if there is only one pair.
    """
    taken = pairs.select(evenly_spaced(len(pairs), _MOST_PAIRS))
    rows = [np.unique([*source, *target]) for source, target in zip(taken["input_ids"], taken["labels"], strict=True)]
    tokens = torch.from_numpy(np.concatenate(rows))  # [occurrences]
    columns = torch.repeat_interleave(torch.tensor([len(row) for row in rows]))  # [occurrences], pairs of the tokens
    frequencies = tokens.bincount(minlength=vocabulary)
    weights = frequencies[tokens].rsqrt()  # [occurrences]
    weights *= torch.zeros(len(rows)).index_add_(0, columns, weights).rsqrt()[columns]
    matrix = torch.sparse_coo_tensor(
        torch.stack([tokens, columns]), weights, (vocabulary, len(rows)), check_invariants=True
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        wanted = min(d_model + _MORE_VECTORS, *matrix.shape)
        vectors, values, _ = torch.svd_lowrank(matrix.coalesce(), wanted, niter=_ITERATIONS)
        rotation, _ = torch.linalg.qr(torch.randn(d_model, d_model))
    embeddings = vectors[:, 1 : d_model + 1] * values[1 : d_model + 1].sqrt()  # [vocabulary, at most d_model]
    embeddings[frequencies == 0] = 0
    return torch.nn.functional.normalize(embeddings @ rotation[: embeddings.shape[1]])


@torch.no_grad()
def set_embeddings(model: PreTrainedModel, directions: torch.Tensor) -> None:
    """Turn a new model's random embeddings towards `directions` `[vocabulary, d_model]`, where these are not zero.

    A separate target vocabulary must be a prefix of the vocabulary.
    """
    for weights in {stack.embed_tokens.weight for stack in (model.get_encoder(), model.get_decoder())}:
        rows = directions[: len(weights)]
        known = rows.any(dim=1)
        turned = _SHARE * rows * weights.norm(dim=1, keepdim=True) + (1 - _SHARE**2) ** 0.5 * weights
        weights[known] = turned[known]
