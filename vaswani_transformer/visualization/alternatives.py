"""Alternative tokens at each position of a translation, and the translation that follows from each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.beam_search_vaswani import SentenceProcessor
from ..system.console import ProgressBar
from .tokens import token_texts


_BATCH = 32  # translations computed at once


@dataclass(frozen=True)
class Alternative:
    """An alternative token at a position of a translation, and the translation that follows from it.

    Attributes:
        probability: Its probability given the source and the tokens before it.
        tokens: The whole translation, with the tokens before it.
        translation: The text of `tokens`.
    """

    probability: float
    tokens: tuple[int, ...]
    translation: str


@dataclass(frozen=True)
class Choice:
    """A token of a translation, as text with its leading space, and its alternatives, the most probable first."""

    text: str
    probability: float
    alternatives: tuple[Alternative, ...]


class ForcedPrefixes(SentenceProcessor):
    """Forces a prefix of each sentence; forced tokens keep their log-probabilities.

    The score of a hypothesis therefore covers the whole sentence. Unlike `decoder_input_ids`, the prefixes may differ
    in length. They do not include the start token.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        rows = [torch.tensor(prefix, dtype=torch.long) for prefix in prefixes]
        self.tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)  # [sentences, longest]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - 1
        if position >= self.tokens.shape[1]:
            return scores
        forced = self.tokens[:, position].to(scores.device)
        forced = forced.repeat_interleave(len(scores) // len(forced)).unsqueeze(-1)  # [rows, 1]
        tokens = torch.arange(scores.shape[1], device=scores.device)
        return scores.masked_fill((forced >= 0) & (tokens != forced), -math.inf)

    def select(self, sentences: torch.Tensor) -> None:
        self.tokens = self.tokens[sentences]


@torch.no_grad()
def find_alternatives(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: Sequence[int],
    count: int = 4,
    positions: Sequence[int] | None = None,
    show_progress: bool = False,
    **options: Any,
) -> tuple[Choice, ...]:
    """Search for alternatives to each token of a translation, and for the translations that follow from them.

    Args:
        model, tokenizer: A model of this package, and its tokenizer.
        source: The sentence.
        target: Tokens of its translation, EOS included.
        count: Alternatives of each token; fewer where the length limit allows none.
        positions: Positions of the tokens; all by default.
        show_progress: Whether to show a bar.
        options: Keywords of `generate`, which continues each alternative by the same search as the original.

    Returns:
        The choice at each position.
    """
    inputs = tokenizer(source, return_tensors="pt").to(model.device)
    start = torch.tensor([[model.generation_config.decoder_start_token_id, *target[:-1]]], device=model.device)
    probabilities = model(**inputs, decoder_input_ids=start).logits[0].float().softmax(-1)  # [target, vocabulary]
    chosen = torch.tensor(list(target), device=model.device).unsqueeze(-1)
    count = min(count, probabilities.shape[1] - 1)
    others = probabilities.scatter(1, chosen, -1.0).topk(count).indices.tolist()  # [target, count]
    places = range(len(target)) if positions is None else positions
    prefixes = [(*target[:position], token) for position in places for token in others[position]]
    translations: list[tuple[int, ...]] = []
    with ProgressBar(total=len(prefixes), desc="Searching", unit="alternatives", disable=not show_progress) as bar:
        for first in range(0, len(prefixes), _BATCH):
            translations += _continue(model, inputs, prefixes[first : first + _BATCH], options)
            bar.update(len(translations) - bar.n)
    alternatives: list[list[Alternative]] = [[] for _ in target]
    for prefix, tokens in zip(prefixes, translations, strict=True):
        position, token = len(prefix) - 1, prefix[-1]
        if tokens[: len(prefix)] == prefix:  # it is within the length limit
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            alternatives[position].append(Alternative(float(probabilities[position, token]), tokens, text))
    texts = token_texts(tokenizer, target)
    return tuple(
        Choice(texts[position], float(probabilities[position, target[position]]), tuple(alternatives[position]))
        for position in places
    )


def _continue(
    model: PreTrainedModel, inputs: Any, prefixes: Sequence[tuple[int, ...]], options: dict[str, Any]
) -> list[tuple[int, ...]]:
    """The translation that begins with each prefix, up to EOS."""
    repeated = {name: value.expand(len(prefixes), -1) for name, value in inputs.items()}
    processors = [*options.get("logits_processor", []), ForcedPrefixes(prefixes)]
    options = options | {"num_return_sequences": 1, "return_dict_in_generate": False, "logits_processor": processors}
    rows = model.generate(**repeated, **options)[:, 1:].tolist()
    end = model.generation_config.eos_token_id
    return [tuple(row[: row.index(end) + 1] if end in row else row) for row in rows]
