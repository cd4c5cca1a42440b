"""Section 6.1 of the paper: a translation has at most input length + 50 tokens, each sentence its own limit."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.stopping_criteria import StoppingCriteria


def tokens_over_source(*places: Mapping[str, Any]) -> int | None:
    """`max_new_tokens_over_source` of the first place that limits the length; None if that has a fixed limit.

    Raises:
        ValueError: It is negative, or no integer.
    """
    for place in places:
        if place.get("max_new_tokens") is not None or place.get("max_length") is not None:
            return None
        tokens = place.get("max_new_tokens_over_source")
        if tokens is not None:
            if not isinstance(tokens, int) or tokens < 0:
                raise ValueError(f"max_new_tokens_over_source: must be an integer of at least 0, is {tokens!r}")
            return tokens
    return None


def length_limits(
    config: PreTrainedConfig, source_lengths: torch.Tensor, over_source: int, prefix_length: int
) -> torch.Tensor:
    """Number of tokens that each sentence may generate, EOS included.

    Args:
        config: The model's configuration; a learned position table limits the length, too.
        source_lengths: `[batch]`
        over_source: Tokens that a translation may have more than its source.
        prefix_length: Tokens that the decoder is given, the start token included.

    Returns:
        `[batch]`

    Raises:
        ValueError: The prefix is longer than the learned position table.
    """
    limits = (source_lengths + over_source).clamp(min=1)
    if getattr(config, "position_encoding", None) != "learned":
        return limits
    table = config.max_position_embeddings
    if prefix_length > table:
        raise ValueError(f"decoder_input_ids: {prefix_length} tokens exceed the learned position table of {table}")
    return limits.clamp(max=table + 1 - prefix_length)  # the last token is never fed


class LengthPerSentence(StoppingCriteria):
    """Ends each sentence at its own number of generated tokens.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens that the decoder was given, its start token included.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int) -> None:
        self.limits, self.prefix_length = limits, prefix_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] - self.prefix_length >= _for_each_row(self.limits, input_ids)


class EndPerSentence(LogitsProcessor):
    """Forces an end of sentence as the last token that each sentence may generate.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens that the decoder was given, its start token included.
        tokens: Id, or ids, of which one is forced.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int, tokens: int | list[int]) -> None:
        self.limits, self.prefix_length, self.tokens = limits, prefix_length, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        limits = _for_each_row(self.limits, input_ids)
        is_last = (input_ids.shape[1] - self.prefix_length >= limits - 1).unsqueeze(-1)  # [rows, 1]
        forced = torch.full_like(scores, -math.inf)  # [rows, vocabulary]
        forced[:, self.tokens] = 0.0
        return torch.where(is_last, forced, scores)

    def select(self, sentences: torch.Tensor) -> None:
        """Continue with these sentences only, in this order; `[selected]`."""
        self.limits = self.limits.to(sentences.device)[sentences]


def _for_each_row(limits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Limits `[rows]`; a sentence has one row, or one for each of its beams or samples."""
    return limits.repeat_interleave(input_ids.shape[0] // limits.shape[0]).to(input_ids.device)
