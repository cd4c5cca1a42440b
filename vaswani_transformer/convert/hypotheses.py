"""The best hypotheses of sources given as token ids, searched in batches of sources of one length."""

from collections.abc import Iterator, Sequence
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
    best: list[list[int]] = [[]] * len(sources)
    with tqdm(total=len(sources), desc=description, unit="sentences", delay=5) as bar:  # none for short work
        for indices in batches_of_one_length(sources):
            batch = torch.tensor([sources[index] for index in indices], device=model.device)  # [batch, source]
            mask = torch.ones_like(batch)
            outputs = model.generate(batch, attention_mask=mask, **options)[:, 1:].tolist()  # without the start token
            for index, tokens in zip(indices, outputs, strict=True):
                eos = model.config.eos_token_id
                best[index] = tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
            bar.update(len(indices))
    return best
