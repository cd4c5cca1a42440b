"""Section 6.1 of the paper: a translation has at most input length + 50 tokens, each sentence its own limit."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.stopping_criteria import StoppingCriteria


def tokens_over_source(*scopes: Mapping[str, Any]) -> int | None:
    """`max_new_tokens_over_source` of the first scope that limits the length; None if its limit is fixed.

    Raises:
        ValueError: It is negative, or no integer.
    """
    for scope in scopes:
        if scope.get("max_new_tokens") is not None or scope.get("max_length") is not None:
            return None
        tokens = scope.get("max_new_tokens_over_source")
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
        over_source: Tokens by which a translation may exceed its source.
        prefix_length: Tokens of the decoder's prefix, start token included.

    Returns:
        `[batch]`

    Raises:
        ValueError: The prefix is longer than the learned position table.
    """
    limits = (source_lengths + over_source).clamp(min=1)
    table = config.max_positions
    if table is None:
        return limits
    if prefix_length > table:
        raise ValueError(f"decoder_input_ids: {prefix_length} tokens exceed the learned position table of {table}")
    return limits.clamp(max=table + 1 - prefix_length)  # the last token is not an input of the decoder


class LengthPerSentence(StoppingCriteria):
    """Stops each sentence at its own number of generated tokens.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens of the decoder's prefix, start token included.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int) -> None:
        self.limits, self.prefix_length = limits, prefix_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] - self.prefix_length >= _repeat_to_rows(self.limits, input_ids)


class SentenceProcessor(LogitsProcessor):
    """A logits processor that treats each sentence on its own, so that a search can continue with some of them."""

    def select(self, sentences: torch.Tensor) -> None:
        """Continue with these sentences only, in this order; `[selected]`."""
        raise NotImplementedError


class EndPerSentence(SentenceProcessor):
    """Forces EOS as the last token that each sentence may generate.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens of the decoder's prefix, start token included.
        tokens: EOS id, or several ids that end a sentence.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int, tokens: int | list[int]) -> None:
        self.limits, self.prefix_length, self.tokens = limits, prefix_length, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        limits = _repeat_to_rows(self.limits, input_ids)
        is_last = (input_ids.shape[1] - self.prefix_length >= limits - 1).unsqueeze(-1)  # [rows, 1]
        forced = torch.full_like(scores, -math.inf)  # [rows, vocabulary]
        forced[:, self.tokens] = 0.0
        return torch.where(is_last, forced, scores)

    def select(self, sentences: torch.Tensor) -> None:
        self.limits = self.limits.to(sentences.device)[sentences]


def _repeat_to_rows(limits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Repeat limits for the beams or samples of each sentence: `[rows]`."""
    return limits.repeat_interleave(input_ids.shape[0] // limits.shape[0]).to(input_ids.device)
