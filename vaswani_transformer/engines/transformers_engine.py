"""Search by `generate` for sources given as token ids, in batches of equal length."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from transformers import PreTrainedModel

from ..convert.weights import SPECIAL_IDS
from ..model.search_options_vaswani import SearchOptions
from ..system.console import ProgressBar
from .engine import Engine


_TOKENS_PER_BATCH = 4096  # of the sources; a longer source forms its own batch


def best_hypotheses(
    model: PreTrainedModel, sources: Sequence[Sequence[int]], description: str = "Translating", **options: Any
) -> list[list[int]]:
    """The best hypothesis of each source by `model.generate`, as token ids with EOS; see `n_best_hypotheses`."""
    return [ranked[0] for ranked in n_best_hypotheses(model, sources, description=description, **options)]


def n_best_hypotheses(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    search: SearchOptions | None = None,
    description: str = "Translating",
    **options: Any,
) -> list[list[list[int]]]:
    """The best hypotheses of each source by `model.generate`, the best first, as token ids with EOS.

    A batch has sources of one length, and therefore one length limit; the longest come first.

    Args:
        model: An encoder-decoder model with one EOS.
        sources: Token ids of each source, EOS included.
        search: Beams, hypotheses, alpha and limit; by default as in the model's generation_config.
        description: Text of the progress bar.
        options: Keywords of `generate`.
    """
    eos = model.config.eos_token_id
    results: dict[int, list[list[int]]] = {}
    lengths = [len(source) for source in sources]
    longest_first = sorted(range(len(sources)), key=lengths.__getitem__, reverse=True)
    with ProgressBar(total=len(sources), desc=description, unit="sentences", delay=5) as bar:
        for length, group in groupby(longest_first, lengths.__getitem__):
            indices, size = list(group), max(1, _TOKENS_PER_BATCH // length)
            keywords = {} if search is None else _transformers_keywords(search, length)
            for start in range(0, len(indices), size):
                batch = indices[start : start + size]
                ids = torch.tensor([sources[index] for index in batch], device=model.device)  # [batch, source]
                outputs = model.generate(ids, attention_mask=torch.ones_like(ids), **keywords, **options)[:, 1:]
                rows = [tokens[: tokens.index(eos) + 1] if eos in tokens else tokens for tokens in outputs.tolist()]
                returned = len(rows) // len(batch)
                for number, index in enumerate(batch):
                    results[index] = rows[number * returned : (number + 1) * returned]
                bar.update(len(batch))
    return [results[index] for index in range(len(sources))]


def _transformers_keywords(search: SearchOptions, source_length: int) -> dict[str, object]:
    """Keywords for `generate` of transformers, whose greedy search has no length penalty."""
    names = ("num_beams", "num_return_sequences", *(["length_penalty"] if search.num_beams > 1 else []))
    limit = 1 + search.limit.new_tokens(source_length)  # with the start token
    # The export's own `max_new_tokens` would take precedence.
    return {**{name: getattr(search, name) for name in names}, "max_length": limit, "max_new_tokens": None}


class TransformersTranslator(Engine):
    """An engine that searches with an exported model by `generate` of transformers.

    Args:
        model: The model, with the generation_config of the export.
        name: Its name in the progress bar.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self.model, self.name = model, name
        fields = model.generation_config.to_diff_dict()
        others = {*SPECIAL_IDS, "transformers_version"}
        self.rule = {key: value for key, value in fields.items() if key not in others}
        self.rule["length_penalty_type"] = "transformers"

    def n_best(self, sources: Sequence[Sequence[int]], search: SearchOptions | None = None) -> list[list[list[int]]]:
        return n_best_hypotheses(self.model, sources, search, f"Translating with {self.name}")
