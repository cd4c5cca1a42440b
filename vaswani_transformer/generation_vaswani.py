"""Section 6.1 of the paper, "Machine Translation": beam search with the length penalty of Wu et al. (2016), and at most
input length + 50 tokens of output."""

import copy
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation import GenerationMixin
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList


def paper_generation_config(config: PreTrainedConfig) -> GenerationConfig:
    """What section 6.1 decodes with: beam 4, alpha = 0.6, at most 50 tokens more than the source has.

    `length_penalty_type` is "gnmt", `score = log P / ((5 + |Y|) / 6)^alpha`, or "transformers",
    `score = log P / |Y|^alpha`; |Y| counts EOS in both. `max_new_tokens_over_source` limits each sentence on its own,
    unless `max_new_tokens` or `max_length` is given.
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        early_stopping="never",  # stop only when no live beam can still win, as the authors' code does
        max_new_tokens_over_source=50,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


class GNMTPenalty(float):
    """An alpha for which `|Y| ** alpha`, by which transformers' beam search divides, is `((5 + |Y|) / 6)^alpha`."""

    def __rpow__(self, length: Any) -> Any:  # type: ignore[override]
        return ((5.0 + length) / 6.0) ** float(self)

    def __deepcopy__(self, memo: dict) -> "GNMTPenalty":
        return self


class LengthPerSentence(StoppingCriteria):
    """Stops every sentence at its own number of generated tokens.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens that the decoder was given, its start token included.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int) -> None:
        self.limits = limits
        self.prefix_length = prefix_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        # A sentence has one row greedily, num_beams rows in a beam, and more when candidates are weighed.
        rows_per_sentence = input_ids.shape[0] // self.limits.shape[0]
        limits = self.limits.repeat_interleave(rows_per_sentence).to(input_ids.device)  # [rows]
        return input_ids.shape[1] - self.prefix_length >= limits


class VaswaniGenerationMixin(GenerationMixin):
    """`generate` of transformers, decoding as the paper does unless told otherwise."""

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Translate; arguments and results are those of `transformers.GenerationMixin.generate`.

        Without `attention_mask`, padding is recognised by its id. Behind its end every sequence is padded.

        Raises:
            ValueError: There is no source, or `length_penalty_type` is unknown.
        """
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if ids is not None and ids.dim() == 2 and kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = ids.ne(self.config.pad_token_id).long()  # [batch, source]

        def setting(name: str) -> Any:
            """The keyword, else the given configuration's value, else the model's, as transformers has it."""
            places = (
                kwargs.get(name),
                getattr(generation_config, name, None),
                getattr(self.generation_config, name, None),
            )
            return next((value for value in places if value is not None), None)

        prefix_length = self._prefix_length(kwargs.get("decoder_input_ids"))
        limits, eos, over_source = None, setting("eos_token_id"), setting("max_new_tokens_over_source")
        kwargs.pop("max_new_tokens_over_source", None)
        if over_source is not None and setting("max_new_tokens") is None and setting("max_length") is None:
            limits = self._limits(over_source, prefix_length, kwargs)
            criterion = LengthPerSentence(limits, prefix_length)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), criterion])
            longest = int(limits.max())
            if generation_config is None:
                kwargs["max_new_tokens"] = longest
            else:  # transformers deprecates giving both an object and keywords
                generation_config = copy.deepcopy(generation_config)
                generation_config.max_new_tokens = longest
        output = super().generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        self._pad_behind_the_end(sequences[:, prefix_length:], limits, eos)
        return output

    def _prefix_length(self, prefix: torch.Tensor | None) -> int:
        """Tokens that the decoder is given, with the start token, which transformers puts there if none has it."""
        if prefix is None:
            return 1
        has_start = prefix[:, 0].eq(self.config.decoder_start_token_id).any()
        return prefix.shape[1] + int(not has_start)

    def _limits(self, over_source: int, prefix_length: int, kwargs: dict[str, Any]) -> torch.Tensor:
        """Tokens that each sentence may generate, EOS included: `[batch]`."""
        if kwargs.get("attention_mask") is not None:
            lengths = kwargs["attention_mask"].sum(-1)
        else:
            states = kwargs.get("inputs_embeds")
            if states is None:
                if kwargs.get("encoder_outputs") is None:
                    raise ValueError("generate needs a source: input_ids, inputs_embeds or encoder_outputs")
                states = kwargs["encoder_outputs"][0]
            lengths = torch.full((states.shape[0],), states.shape[1], device=states.device)
        limits = lengths + over_source
        if getattr(self.config, "position_encoding", None) == "learned":
            limits = limits.clamp(max=self.config.max_position_embeddings + 1 - prefix_length)
        return limits

    def _pad_behind_the_end(self, generated: torch.Tensor, limits: torch.Tensor | None, eos: Any) -> None:
        """Fill with padding what lies behind a sequence's EOS or limit, where transformers' beam search writes EOS when
        the padding's id is 0. `generated` is `[batch * returned, target]`, and changed in place."""
        eos = torch.tensor([] if eos is None else eos, device=generated.device, dtype=generated.dtype)
        ends = torch.isin(generated, eos).int()  # [batch * returned, target]
        behind = ends.cumsum(-1) > ends
        if limits is not None:
            limits = limits.repeat_interleave(generated.shape[0] // limits.shape[0]).to(generated.device)
            behind |= torch.arange(generated.shape[1], device=generated.device) >= limits.unsqueeze(-1)
        generated.masked_fill_(behind, self.config.pad_token_id)

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        penalty_type = getattr(generation_config, "length_penalty_type", "transformers")
        if penalty_type not in ("gnmt", "transformers"):
            raise ValueError(f'length_penalty_type: must be "gnmt" or "transformers", is {penalty_type!r}')
        if penalty_type == "gnmt":
            generation_config = copy.copy(generation_config)
            generation_config.length_penalty = GNMTPenalty(generation_config.length_penalty)
        return super()._beam_search(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
