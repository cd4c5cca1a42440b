"""Ensembles: several models that translate together, by the mean of their probabilities."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList

from ..model.beam_search_vaswani import BeamSearch
from ..model.generation_vaswani import VaswaniGenerationMixin, incremental_decoder, search
from ..model.step_decoder_vaswani import StepDecoder


# Fields that the models must share, so that tokens and length limits mean the same to all.
_COMMON = (
    "model_type",
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


class Ensemble:
    """A decoding loop for `generate(custom_generate=Ensemble([second, third]))`.

    Beam search, or greedy search, then follows each token's mean probability over all models.

    Args:
        models: The other models, with the first model's tokenizer and on its device.
    """

    def __init__(self, models: Sequence[VaswaniGenerationMixin]) -> None:
        self.models = tuple(models)

    def __call__(
        self,
        model: VaswaniGenerationMixin,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: torch.Tensor,
        **model_kwargs: Any,
    ) -> Any:
        """As `search`; the other models encode `inputs_tensor` `[sentences, source]`.

        Raises:
            ValueError: The search samples, or returns attentions or hidden states; or a model has other tokens, or is
                not `is_unmodified`.
        """
        for name in ("do_sample", "output_attentions", "output_hidden_states"):
            if getattr(generation_config, name):
                raise ValueError(f"ensemble: {name} is not available with several models; leave it out")
        for number, each in enumerate(self.models, 1):
            require_same_tokens(model.config, each.config, f"ensemble: additional model {number}")
        if not all(each.is_unmodified() for each in (model, *self.models)):
            raise ValueError("ensemble: a model has hooks or adapters, or is in training; call eval()")

        def make_decoder(beams: BeamSearch) -> StepDecoder:
            mask = model_kwargs["attention_mask"][:: generation_config.num_beams]
            states = [model_kwargs["encoder_outputs"][0][:: generation_config.num_beams]]
            states += [each.get_encoder()(inputs_tensor, mask)[0] for each in self.models]
            pairs = zip((model, *self.models), states, strict=True)
            return EnsembleDecoder([incremental_decoder(each, beams, encoded, mask) for each, encoded in pairs])

        loop = (logits_processor, stopping_criteria, generation_config)
        return search(model, input_ids, *loop, make_decoder=make_decoder, **model_kwargs)


class EnsembleDecoder:
    """Predicts the mean of the distributions that several models predict.

    Args:
        members: The decoder of each model.
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


def require_same_tokens(config: PreTrainedConfig, other: PreTrainedConfig, place: str) -> None:
    """Raise a ValueError that begins with `place` if two models differ in tokens, languages or positions."""
    for name in _COMMON:
        ours, theirs = (getattr(each, name, None) for each in (config, other))
        if ours != theirs:
            raise ValueError(f"{place} has {name} {theirs!r}, but the first model has {ours!r}")
