"""The best hypotheses of sources given as token ids, searched in batches of sources of one length."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel


def batches_of_one_length(sources: Sequence[Sequence[int]], tokens_per_batch: int = 4096) -> Iterator[list[int]]:
    """Indices of sources of equal length, so that a batch has one length limit; longest first.

    Args:
        sources: Token ids of each source.
        tokens_per_batch: Source tokens of a batch. A longer source forms its own batch.
    """
    lengths = [len(source) for source in sources]
    longest_first = sorted(range(len(sources)), key=lengths.__getitem__, reverse=True)
    for length, group in groupby(longest_first, lengths.__getitem__):
        indices, size = list(group), max(1, tokens_per_batch // length)
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


def search_in_batches(
    sources: Sequence[Sequence[int]],
    search: Callable[[list[Sequence[int]]], Sequence[list[int]]],
    description: str | None = None,
) -> list[list[int]]:
    """What a search returns for each source, in their order; `description` is for a progress bar, None for no bar."""
    best: list[list[int]] = [[]] * len(sources)
    with tqdm(total=len(sources), desc=description, unit="sentences", delay=5, disable=description is None) as bar:
        for indices in batches_of_one_length(sources):
            hypotheses = search([sources[index] for index in indices])
            for index, tokens in zip(indices, hypotheses, strict=True):
                best[index] = tokens
            bar.update(len(indices))
    return best


def best_hypotheses(
    model: PreTrainedModel, sources: Sequence[Sequence[int]], description: str = "Translating", **options: object
) -> list[list[int]]:
    """The best hypothesis of each source by `model.generate`, as token ids with EOS.

    Args:
        model: An encoder-decoder model with one EOS.
        sources: Token ids of each source, EOS included.
        description: Text of the progress bar.
        options: For `generate`.
    """
    eos = model.config.eos_token_id

    def search(batch: list[Sequence[int]]) -> list[list[int]]:
        ids = torch.tensor(batch, device=model.device)  # [batch, source]
        outputs = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, 1:]  # without the start token
        return [tokens[: tokens.index(eos) + 1] if eos in tokens else tokens for tokens in outputs.tolist()]

    return search_in_batches(sources, search, description)
