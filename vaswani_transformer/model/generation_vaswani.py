"""`generate` as in section 6.1 of the paper: defaults, length limits, choice of step decoder."""

import copy
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from numbers import Integral
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation import GenerationMixin
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .beam_search_vaswani import (
    NON_FINITE_LOGITS,
    BeamSearch,
    EndPerSentence,
    ForcedPhrases,
    Hypotheses,
    LengthPerSentence,
)
from .languages_vaswani import require_tags
from .step_decoder_vaswani import EnsembleDecoder, ForwardDecoder, IncrementalDecoder, StepDecoder


# Arguments of `forward` that IncrementalDecoder uses, or that have no effect on the search.
_KNOWN_INPUTS = {
    "encoder_outputs",
    "attention_mask",
    "past_key_values",
    "use_cache",
    "logits_to_keep",
    "labels",
    "output_attentions",
    "output_hidden_states",
    "inputs_embeds",
    "decoder_input_ids",
    "decoder_ensemble",
}

# What the models of an ensemble have in common, so that a token, and a limit of length, mean the same to all.
_OF_ENSEMBLE = (
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

_NO_ENSEMBLE = (
    "ensemble: cannot be decoded with these options; leave out decoder_attention_mask, attentions, hidden states, "
    "hooks and adapters, keep use_cache; with one beam, also processors, criteria, streamers and results other than ids"
)

_CRITERIA_OF_GREEDY_SEARCH = (LengthPerSentence, MaxLengthCriteria, EosTokenCriteria)

# What transformers fills into a generation_config. The function is private there, and may go.
_fillers = getattr(GenerationConfig, "_get_default_generation_params", dict)
_DEFAULTS: dict[str, Any] = {name: value for name, value in _fillers().items() if value is not None}

# Fields that do not concern the search. Without a generation_config.json, transformers copies some from config.json.
_NOT_OF_SEARCH = {
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "transformers_version",
    "_from_model_config",
    "use_cache",
}


def paper_generation_config(config: PreTrainedConfig) -> GenerationConfig:
    """The search of section 6.1: beam 4, alpha = 0.6, at most source length + 50 tokens.

    `length_penalty_type` is "gnmt", `score = log P / ((5 + |Y|) / 6)^alpha`, or "transformers",
    `score = log P / |Y|^alpha`; |Y| counts EOS in both. `max_new_tokens_over_source` limits each sentence on its own.
    Keywords of `generate` override the configuration passed to it, which overrides the model's. In each of the three,
    `max_new_tokens` and `max_length` override `max_new_tokens_over_source`.
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        early_stopping="never",  # stop only when no live hypothesis can still win, as the authors' code does
        max_new_tokens_over_source=50,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


class FiniteLogits(LogitsProcessor):
    """Raises a ValueError where the largest score is NaN or infinite."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not scores.max() < math.inf:  # also if any score is NaN, because then the maximum is
            raise ValueError(NON_FINITE_LOGITS)
        return scores


class VaswaniGenerationMixin(GenerationMixin):
    """`generate` of transformers, with the paper's search by default."""

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Iterable[LogitsProcessor] | None = None,
        stopping_criteria: Iterable[StoppingCriteria] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Translate; arguments and results are those of `transformers.GenerationMixin.generate`.

        Without `attention_mask`, padding is recognized by its id. With beams, and in plain greedy search, `BeamSearch`
        searches. `force_words_ids` are phrases that each translation contains, unless it reaches its length limit:
        token ids of each, or of each several alternatives. Beams that are fewer than their tokens may miss the best
        such translation.

        `ensemble` is a list of other models of this package, with the same tokenizer: beam search, or plain greedy
        search, then follows the mean of the probabilities that this model and they give each token.

        Raises:
            ValueError: There is no source, or ids are not `[batch, source]`; `decoder_input_ids` is empty or exceeds
                a learned position table; a number of beams, sequences or tokens is below 1; `length_penalty_type` is
                unknown; logits are NaN; the model has several directions, and a source begins with no language tag;
                `force_words_ids` are no phrases, or there are no beams to search for them; or `ensemble` has a model
                with other tokens, `input_ids` are missing for it, or it cannot search with these options.
        """
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if ids is not None:
            if ids.dim() != 2 or not ids.numel():
                raise ValueError(
                    f"input_ids: have the shape {list(ids.shape)}; give [batch, source], neither of them 0; "
                    "for a single sentence, input_ids[None]"
                )
            if kwargs.get("attention_mask") is None:
                kwargs["attention_mask"] = ids.ne(self.config.pad_token_id).long()  # [batch, source]
            require_tags(self.config, ids)
        if not hasattr(self.generation_config, "length_penalty_type"):
            self.generation_config.length_penalty_type = "transformers"  # else the keyword would be refused
        scopes = [
            kwargs,
            {} if generation_config is None else vars(generation_config),
            vars(self.generation_config),
        ]
        _require_counts(scopes)
        prefix_length = _prefix_length(kwargs.get("decoder_input_ids"), _first(scopes, "decoder_start_token_id"))
        if (phrases := kwargs.pop("force_words_ids", None)) is not None:
            forced = ForcedPhrases(_phrases(phrases, scopes, self.config), _ends(scopes))
            logits_processor = LogitsProcessorList([*(logits_processor or []), forced])
        if (others := kwargs.pop("ensemble", None)) is not None:
            # transformers keeps arguments of this prefix from the encoder.
            kwargs["decoder_ensemble"] = self._encoded_by(others, ids, kwargs.get("attention_mask"), scopes)
        over_source = tokens_over_source(*scopes)
        kwargs.pop("max_new_tokens_over_source", None)
        if over_source is not None:
            limits = length_limits(self.config, _source_lengths(kwargs), over_source, prefix_length)
            criterion = LengthPerSentence(limits, prefix_length)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), criterion])
            forced_end = _first(scopes, "forced_eos_token_id")
            if forced_end is not None:
                end = EndPerSentence(limits, prefix_length, forced_end)
                logits_processor = LogitsProcessorList([*(logits_processor or []), end])
            longest = int(limits.max())
            if generation_config is None:
                kwargs |= {"max_new_tokens": longest, "max_length": None}
            else:  # transformers deprecates giving both an object and keywords
                generation_config = copy.deepcopy(generation_config)
                generation_config.max_new_tokens, generation_config.max_length = longest, None
                for name in ("max_new_tokens", "max_length"):
                    kwargs.pop(name, None)
        return super().generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        super()._validate_model_kwargs(
            {name: model_kwargs[name] for name in model_kwargs if name != "decoder_ensemble"}
        )

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Sampling and greedy search; see `transformers.GenerationMixin._sample`.

        Plain greedy search is beam search with one beam, ended by its first EOS; finished sentences leave the batch.
        """
        has_listeners = synced_gpus or streamer is not None or generation_config.return_dict_in_generate
        is_plain = not (has_listeners or generation_config.do_sample or logits_processor)
        # Other criteria may depend on the number of rows, and the search has two rows for each sentence.
        is_plain = is_plain and all(type(rule) in _CRITERIA_OF_GREEDY_SEARCH for rule in stopping_criteria)
        cache = model_kwargs.get("past_key_values")
        is_plain = is_plain and (cache is None or cache.get_seq_length() == 0)
        if is_plain and self._can_decode_incrementally(generation_config, model_kwargs):
            return self._beam_search(input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
        if model_kwargs.get("decoder_ensemble"):
            raise ValueError(_NO_ENSEMBLE)
        # The check comes last, because another processor may replace NaN and infinity.
        processors = LogitsProcessorList([*logits_processor, FiniteLogits()])
        return super()._sample(
            input_ids, processors, stopping_criteria, generation_config, synced_gpus, streamer, **model_kwargs
        )

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        observer: Callable[[BeamSearch, Hypotheses, torch.Tensor], None] | None = None,
        decoder_ensemble: Sequence[tuple["VaswaniGenerationMixin", torch.Tensor]] = (),
        **model_kwargs: Any,
    ) -> Any:
        """Beam search; see `transformers.GenerationMixin._beam_search` for the arguments, `BeamSearch` for `observer`.

        Tensors have `num_beams` rows for each sentence; the other models of a `decoder_ensemble` come with the outputs
        of their encoders, which have one. With one beam, the first EOS ends a sentence.
        """
        config = generation_config
        if config.num_beams == 1:
            config = copy.copy(config)
            config.early_stopping, config.length_penalty = True, 1.0
        cache = model_kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            raise ValueError("past_key_values: beam search has its own cache; give the prefix as decoder_input_ids")
        prefixes = input_ids[:: config.num_beams]
        search = BeamSearch(prefixes, logits_processor, stopping_criteria, config, observer)
        needs_outputs = config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states)
        outputs: list[Seq2SeqLMOutput] | None = [] if needs_outputs else None
        states = model_kwargs["encoder_outputs"][0][:: config.num_beams]  # [sentences, source, d_model]
        members = [(self, states), *decoder_ensemble]
        are_fast = all(member._can_decode_incrementally(config, model_kwargs) for member, _ in members)
        calls_forward = synced_gpus or needs_outputs or not are_fast
        decoder: StepDecoder
        if not calls_forward:
            mask = model_kwargs.get("attention_mask")
            rows = None if mask is None else mask[:: config.num_beams]
            decoders = [member._incremental_decoder(search, encoded, rows) for member, encoded in members]
            decoder = EnsembleDecoder(decoders) if decoder_ensemble else decoders[0]
        elif decoder_ensemble:
            raise ValueError(_NO_ENSEMBLE)
        else:
            decoder = ForwardDecoder(self, model_kwargs, config, outputs)
        while _on_any_rank(not search.is_done, synced_gpus, input_ids.device):
            if search.is_done:  # the other ranks need this one in the collectives of `forward`
                ForwardDecoder(self, {**model_kwargs, "past_key_values": None}, config).prefill(prefixes)
            else:
                search.advance(decoder)
        result = search.result()
        if not config.return_dict_in_generate:
            return result.sequences
        if calls_forward:
            result["past_key_values"] = cache
        for name, value in _attentions_and_states(outputs or [], model_kwargs["encoder_outputs"]).items():
            result[name] = value
        return result

    def _encoded_by(
        self,
        ensemble: Sequence["VaswaniGenerationMixin"],
        ids: torch.Tensor | None,
        mask: torch.Tensor | None,
        scopes: list[Mapping[str, Any]],
    ) -> list[tuple["VaswaniGenerationMixin", torch.Tensor]]:
        """The other models of an ensemble, each with its encoder's output for the sources."""
        if not isinstance(ensemble, (list, tuple)):
            raise ValueError(f"ensemble: is a {type(ensemble).__name__}; give a list of models")
        for number, member in enumerate(ensemble, 1):
            require_same_tokens(self.config, getattr(member, "config", None), f"ensemble: its model {number}")
        if any(member.training or member.device != self.device for member in (self, *ensemble)):
            raise ValueError("ensemble: call eval() of all its models, and move them to one device")
        if ids is None:
            raise ValueError("ensemble: needs input_ids, because each model has its own embeddings and encoder")
        for name in ("do_sample", "assistant_model", "prompt_lookup_num_tokens"):
            if _first(scopes, name):
                raise ValueError(
                    f"ensemble: several models search together, and do not sample or draft; leave out {name}"
                )
        return [(member, member.get_encoder()(input_ids=ids, attention_mask=mask)[0]) for member in ensemble]

    def _incremental_decoder(
        self, search: BeamSearch, encoded: torch.Tensor, mask: torch.Tensor | None
    ) -> IncrementalDecoder:
        decoder, lm_head = self.get_decoder(), self.get_output_embeddings()
        return IncrementalDecoder(
            decoder, lm_head, encoded, mask, search.num_beams, search.prefix_length, search.max_length
        )

    def _can_decode_incrementally(self, config: GenerationConfig, model_kwargs: Mapping[str, Any]) -> bool:
        """Whether `IncrementalDecoder` can replace the model's `forward`."""
        if not config.use_cache or any(model_kwargs[name] is not None for name in model_kwargs.keys() - _KNOWN_INPUTS):
            return False
        replaced = getattr(self.prepare_inputs_for_generation, "__func__", None)
        if replaced is not GenerationMixin.prepare_inputs_for_generation or not self.has_own_classes():
            return False
        decoder, lm_head = self.get_decoder(), self.get_output_embeddings()
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(decoder.config._attn_implementation, None)  # None: eager
        if attention is not None and not attention.__module__.startswith("transformers.integrations."):
            return False
        modules = [self, self.model, *decoder.modules(), *lm_head.modules()]
        if any(calls_more_than_its_class(module) for module in modules):
            return False
        if any(module.training for module in decoder.modules()):
            return False
        device = model_kwargs["encoder_outputs"][0].device
        weights = [*decoder.parameters(), *lm_head.parameters()]
        # Weights may be spread over devices, left on a disk, or split among processes.
        return all(weight.device == device and not hasattr(weight, "device_mesh") for weight in weights)


def calls_more_than_its_class(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` set on the instance, change what a module computes."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    # transformers never removes its hooks that record attentions; they do nothing unless attentions are requested.
    if any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks):
        return True
    forward = vars(module).get("forward")
    if getattr(forward, "__module__", None) == "accelerate.utils.operations":  # its wrapper for mixed precision
        forward = vars(module).get("_original_forward", forward)
    own = type(module).forward  # accelerate, on removing its wrapper, restores it without the decorators
    return forward is not None and getattr(forward, "__func__", None) not in (own, inspect.unwrap(own))


def require_same_tokens(config: PreTrainedConfig, other: PreTrainedConfig | None, place: str) -> None:
    """Check that two models can translate together.

    Args:
        config: Of one.
        other: Of the other.
        place: Names the other; the message starts with it.

    Raises:
        ValueError: The other is of another package, or differs in tokens, languages or positions.
    """
    # Code that came with a model has classes of its own.
    if getattr(other, "model_type", None) != config.model_type:
        raise ValueError(f"{place} is none of this package; an ensemble has no others")
    for name in _OF_ENSEMBLE:
        if getattr(config, name) != getattr(other, name):
            raise ValueError(f"{place} has {name} {getattr(other, name)!r}, and the first {getattr(config, name)!r}")


def _first(scopes: Iterable[Mapping[str, Any]], name: str) -> Any:
    """The first value that is not None, as transformers chooses it."""
    return next((scope[name] for scope in scopes if scope.get(name) is not None), None)


def _require_counts(scopes: list[Mapping[str, Any]]) -> None:
    for name in ("num_beams", "num_return_sequences", "max_new_tokens", "max_length"):
        value = _first(scopes, name)
        if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
            raise ValueError(f"{name}: must be an integer of at least 1, is {value!r}")


def _ends(scopes: Iterable[Mapping[str, Any]]) -> list[int]:
    """The tokens that end a sentence."""
    ends = _first(scopes, "eos_token_id")
    return [] if ends is None else torch.as_tensor(ends).flatten().tolist()


def _phrases(given: Any, scopes: list[Mapping[str, Any]], config: PreTrainedConfig) -> list[list[list[int]]]:
    """The alternatives of each phrase of `force_words_ids`."""
    if (_first(scopes, "num_beams") or 1) == 1 or _first(scopes, "do_sample"):
        raise ValueError("force_words_ids: beam search finds them; give num_beams of at least 2, without do_sample")
    advice = "give token ids of each phrase, or of each several alternatives, without special tokens"
    if not isinstance(given, (list, tuple)) or not all(
        isinstance(each, (list, tuple)) and each for each in (given, *given)
    ):
        raise ValueError(f"force_words_ids: is {given!r}; {advice}")
    phrases = [[each] if isinstance(each[0], int) else each for each in given]
    special = {*_ends(scopes), *(_first(scopes, f"{name}_token_id") for name in ("pad", "decoder_start"))}
    known = set(range(config.output_vocab_size)) - special
    for phrase in chain.from_iterable(phrases):
        is_listed = isinstance(phrase, (list, tuple)) and phrase and all(isinstance(token, int) for token in phrase)
        if not is_listed or not known.issuperset(phrase):
            raise ValueError(f"force_words_ids: {phrase!r} is no phrase; {advice}")
    return [[list(phrase) for phrase in alternatives] for alternatives in phrases]


def _prefix_length(prefix: torch.Tensor | None, start: int) -> int:
    """Length of the decoder's prefix with its start token, which transformers adds if no row has it."""
    if prefix is None:
        return 1
    if not prefix.shape[1]:
        raise ValueError(f"decoder_input_ids: has no tokens; leave it out, or begin with the start token {start}")
    has_start = prefix[:, 0].eq(start).any()
    return prefix.shape[1] + int(not has_start)


def _source_lengths(kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Tokens of each source `[batch]`, without padding."""
    if kwargs.get("attention_mask") is not None:
        return kwargs["attention_mask"].sum(-1)
    states = kwargs.get("inputs_embeds")
    if states is None:
        if kwargs.get("encoder_outputs") is None:
            raise ValueError("generate needs a source: input_ids, inputs_embeds or encoder_outputs")
        states = kwargs["encoder_outputs"][0]
    return torch.full((states.shape[0],), states.shape[1], device=states.device)


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


def _on_any_rank(condition: bool, synced_gpus: bool, device: torch.device) -> bool:
    """Whether a condition holds on this rank or, with `synced_gpus`, on any rank."""
    if not synced_gpus:
        return condition
    count = torch.tensor(float(condition), device=device)
    torch.distributed.all_reduce(count)
    return count.item() > 0


def _attentions_and_states(outputs: list[Seq2SeqLMOutput], encoded: Mapping[str, Any]) -> dict[str, Any]:
    """Attentions and hidden states that the steps returned: for each step a tuple of one tensor per layer."""
    returned: dict[str, Any] = {}
    if outputs and outputs[0].decoder_attentions is not None:
        for name in ("decoder_attentions", "cross_attentions"):
            returned[name] = tuple(output[name] for output in outputs)
        returned["encoder_attentions"] = encoded.get("attentions")
    if outputs and outputs[0].decoder_hidden_states is not None:
        returned["decoder_hidden_states"] = tuple(output["decoder_hidden_states"] for output in outputs)
        returned["encoder_hidden_states"] = encoded.get("hidden_states")
    return returned


def is_filled(config: GenerationConfig) -> bool:
    """Whether a library has filled in every default; a user sets a few fields, never all."""
    return bool(_DEFAULTS) and all(getattr(config, name, value) is not None for name, value in _DEFAULTS.items())


class OwnGenerationConfig:
    """Keeps transformers' defaults out of a model's `generation_config`; must be the first base class."""

    generation_config: GenerationConfig

    # The configuration, and its last copy without the defaults.
    _seen: tuple[GenerationConfig, GenerationConfig] | None = None

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; see `transformers.PreTrainedModel.from_pretrained`.

        If `generation_config.json` is missing or has no search options, the model gets `paper_generation_config`.
        """
        loaded = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]  # a mixin
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with `output_loading_info`
        model.restore_generation_config()
        if not set(model.generation_config.to_diff_dict()) - _NOT_OF_SEARCH:
            model.generation_config = paper_generation_config(model.config)
        return loaded

    def restore_generation_config(self) -> None:
        """Remove filled-in defaults from `generation_config`; keep the user's fields."""
        config = self.generation_config
        if not is_filled(config):
            self._seen = (config, copy.copy(config))
            return
        own = self._seen[1] if self._seen is not None and self._seen[0] is config else None
        for name, default in _DEFAULTS.items():
            if getattr(config, name, None) == default and getattr(own, name, None) is None:
                setattr(config, name, None)

    def generate(
        self, inputs: Any = None, generation_config: GenerationConfig | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Translate; see `VaswaniGenerationMixin.generate`. A filled-in default does not limit the length."""
        self.restore_generation_config()
        given = generation_config
        if given is not None and is_filled(given) and given.max_length == _DEFAULTS["max_length"]:
            generation_config = copy.deepcopy(given)
            generation_config.max_length = None
        return super().generate(inputs, generation_config, *args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save the model with its own generation_config; see `transformers.PreTrainedModel.save_pretrained`."""
        self.restore_generation_config()
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
