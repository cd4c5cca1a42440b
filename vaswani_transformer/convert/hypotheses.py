"""The best hypotheses of sources given as token ids, searched in batches of sources of one length."""

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from transformers import PreTrainedModel

from ..io.console import ProgressBar
from .weights import SPECIAL_IDS


_TOKENS_PER_BATCH = 4096  # of the sources; a longer source forms its own batch


def search_in_batches(
    sources: Sequence[Sequence[int]],
    search: Callable[[list[Sequence[int]]], Sequence[list[int]]],
    description: str | None = None,
) -> list[list[int]]:
    """What a search returns for each source, in their order.

    A batch has sources of one length, and therefore one length limit; the longest come first.

    Args:
        sources: Token ids of each source.
        search: Returns a hypothesis for each source of a batch.
        description: Text of the progress bar; None for no bar.
    """
    best: list[list[int]] = [[]] * len(sources)
    lengths = [len(source) for source in sources]
    longest_first = sorted(range(len(sources)), key=lengths.__getitem__, reverse=True)
    with ProgressBar(total=len(sources), desc=description, unit="sentences", delay=5, disable=not description) as bar:
        for length, group in groupby(longest_first, lengths.__getitem__):
            indices, size = list(group), max(1, _TOKENS_PER_BATCH // length)
            for start in range(0, len(indices), size):
                batch = indices[start : start + size]
                for index, tokens in zip(batch, search([sources[index] for index in batch]), strict=True):
                    best[index] = tokens
                bar.update(len(batch))
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


class TransformersTranslator:
    """An engine that searches with an exported model by `generate` of transformers.

    Args:
        model: The model, with the generation_config of the export.
        name: What the progress bar calls it.

    Attributes:
        rule: Keywords with which `generate` of our model searches by the same rules.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self.model, self.name = model, name
        fields = model.generation_config.to_diff_dict()
        others = {*SPECIAL_IDS, "transformers_version"}
        self.rule = {key: value for key, value in fields.items() if key not in others}
        self.rule["length_penalty_type"] = "transformers"

    def hypotheses(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The best hypothesis of each source; sources and hypotheses are token ids with EOS."""
        return best_hypotheses(self.model, sources, f"Translating with {self.name}")
