"""Ensembles: several models that translate together, by the mean of their probabilities."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from .step_decoder_vaswani import StepDecoder


# What the models have in common, so that a token, and a limit of length, mean the same to all.
_COMMON = (
    "vocab_size",
    "output_vocab_size",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "source_language",
    "target_language",
    "language_tags",
    "max_positions",
)


class EnsembleDecoder:
    """Predicts the mean of the distributions that several models predict.

    Args:
        members: A decoder of each model.
    """

    def __init__(self, members: Sequence[StepDecoder]) -> None:
        self.members = members

    def prefill(self, tokens: torch.Tensor) -> Iterable[torch.Tensor]:
        return self._mean([member.prefill(tokens) for member in self.members])

    def step(self, tokens: torch.Tensor, parents: torch.Tensor) -> Iterable[torch.Tensor]:
        return self._mean([member.step(tokens, parents) for member in self.members])

    def sentences_for(self, remaining: int) -> int:
        return max(member.sentences_for(remaining) for member in self.members)

    def select(self, order: list[int]) -> None:
        for member in self.members:
            member.select(order)

    def _mean(self, logits: list[Iterable[torch.Tensor]]) -> Iterable[torch.Tensor]:
        """Logarithms of the sums of the members' probabilities; the softmax removes the constant."""
        for chunks in zip(*logits, strict=True):
            total, *others = (chunk.float().softmax(-1) for chunk in chunks)  # [rows, vocabulary]
            for probabilities in others:
                total += probabilities
            yield total.clamp_(min=torch.finfo(total.dtype).tiny).log_()


def require_ensemble(
    model: PreTrainedModel, ensemble: Any, ids: torch.Tensor | None, config: GenerationConfig, kwargs: Mapping[str, Any]
) -> None:
    """Check that `ensemble` is a list of models that can translate together with `model`.

    Args:
        model: The first model.
        ensemble: The others.
        ids: `[batch, source]`, the sources.
        config: The search.
        kwargs: The other keywords of `generate`.

    Raises:
        ValueError: They are no list, differ in tokens, are in training or on several devices; `ids` is None; or the
            search samples or drafts.
    """
    if not isinstance(ensemble, (list, tuple)):
        raise ValueError(f"ensemble: is a {type(ensemble).__name__}; give a list of models")
    for number, member in enumerate(ensemble, 1):
        require_same_tokens(model.config, getattr(member, "config", None), f"ensemble: its model {number}")
    if any(member.training or member.device != model.device for member in (model, *ensemble)):
        raise ValueError("ensemble: call eval() of all its models, and move them to one device")
    if ids is None:
        raise ValueError("ensemble: needs input_ids, because each model has its own embeddings and encoder")
    for name in ("do_sample", "assistant_model", "prompt_lookup_num_tokens"):
        if kwargs.get(name) or getattr(config, name, None):
            raise ValueError(f"ensemble: several models search together, and do not sample or draft; leave out {name}")


def require_same_tokens(config: PreTrainedConfig, other: PreTrainedConfig | None, place: str) -> None:
    """Check that two models have the same tokens.

    Args:
        config: The configuration of the first.
        other: The configuration of the second, None if it has none.
        place: Names the second; the message starts with it.

    Raises:
        ValueError: The second is of another package, or differs in tokens, languages or positions.
    """
    # Code that came with a model has classes of its own.
    if getattr(other, "model_type", None) != config.model_type:
        raise ValueError(f"{place} is none of this package; an ensemble has no others")
    for name in _COMMON:
        if getattr(config, name) != getattr(other, name):
            raise ValueError(f"{place} has {name} {getattr(other, name)!r}, and the first {getattr(config, name)!r}")
