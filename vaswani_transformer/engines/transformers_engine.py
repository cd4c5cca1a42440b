"""An engine that calls `generate` of transformers, on batches of sources of equal length."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from transformers import PreTrainedModel

from ..model.search_options_vaswani import SPECIAL_IDS, SearchOptions, set_options
from ..system.console import ProgressBar
from .engine import Engine


_TOKENS_PER_BATCH = 4096  # of the sources; a longer source forms its own batch


class TransformersTranslator(Engine):
    """An engine that searches by `generate` with a model in memory: an exported one, or for comparison ours.

    Args:
        model: An encoder-decoder model with one EOS; an exported one has the generation_config of the export.
        name: Its name in the progress bar.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self.model, self.name = model, name
        options = set_options(model.generation_config).items()
        self.rule = {key: value for key, value in options if key not in SPECIAL_IDS}
        self.rule["length_penalty_type"] = "transformers"

    def n_best(
        self, sources: Sequence[Sequence[int]], search: SearchOptions | None = None, **options: Any
    ) -> list[list[list[int]]]:
        """As `Engine.n_best`; `options` are keywords of `generate`.

        A batch has sources of one length, and therefore one length limit; the longest come first.
        """
        eos, device = self.model.config.eos_token_id, self.model.device
        results: dict[int, list[list[int]]] = {}
        lengths = [len(source) for source in sources]
        longest_first = sorted(range(len(sources)), key=lengths.__getitem__, reverse=True)
        description = f"Translating with {self.name}"
        with ProgressBar(total=len(sources), desc=description, unit="sentences", delay=5) as bar:
            for length, group in groupby(longest_first, lengths.__getitem__):
                indices, size = list(group), max(1, _TOKENS_PER_BATCH // length)
                keywords = {} if search is None else _transformers_keywords(search, length)
                for start in range(0, len(indices), size):
                    batch = indices[start : start + size]
                    ids = torch.tensor([sources[index] for index in batch], device=device)  # [batch, source]
                    mask = torch.ones_like(ids)
                    outputs = self.model.generate(ids, attention_mask=mask, **keywords, **options)[:, 1:]
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
