"""`generate` as in section 6.1 of the paper: defaults, length limits, choice of step decoder."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.generation import GenerationMixin, GenerationMode
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList, StopStringCriteria
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .beam_search_vaswani import NON_FINITE_LOGITS, BeamSearch, Hypotheses
from .constraints_vaswani import EndPerSentence, LengthPerSentence, forced_phrases
from .ensemble_vaswani import EnsembleDecoder, require_ensemble
from .languages_vaswani import require_tags
from .step_decoder_vaswani import CACHE, ForwardDecoder, IncrementalDecoder, StepDecoder, named_cache


_logger = logging.get_logger(__name__)

# Arguments of `forward` that IncrementalDecoder uses, or that have no effect on the search.
_KNOWN_INPUTS = {
    "encoder_outputs",
    "attention_mask",
    CACHE,
    "use_cache",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "inputs_embeds",
    "decoder_input_ids",
}

# Fields that do not concern the search. Without a generation_config.json, transformers copies some from config.json.
_NOT_OF_SEARCH = {
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "transformers_version",
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

        Without `attention_mask`, padding is recognized by its id. With beams, and in greedy search, `search` replaces
        transformers' decoding loop, unless `custom_generate` does. Greedy search is left to transformers where it
        streams, returns more than ids, continues a cache, or has stopping criteria of the caller.

        `force_words_ids` are phrases that each translation contains: token ids of each, or of each several
        alternatives. Beams that are fewer than their tokens may miss the best such translation; one that reaches its
        length limit without them is returned with a warning.

        `ensemble` is a list of other models of this package, with the same tokenizer: beam search, or greedy search,
        then follows the mean of the probabilities that this model and they give each token.

        Raises:
            ValueError: There is no source, or ids are not `[batch, source]`; `decoder_input_ids` is empty or exceeds
                a learned position table; a number of beams, sequences or tokens is below 1; `length_penalty_type` is
                unknown; logits are NaN; the model has several directions, and a source begins with no language tag;
                `force_words_ids` are no phrases, are forbidden or too long, or there are no beams to search for them;
                beam search has a `streamer`; or `ensemble` has a model with other tokens, `input_ids` are missing for
                it, or it cannot search with these options.
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
        scopes = [kwargs, {} if generation_config is None else vars(generation_config), vars(self.generation_config)]
        over_source = tokens_over_source(*scopes)
        phrases, ensemble = kwargs.pop("force_words_ids", None), kwargs.pop("ensemble", None)
        config, kwargs = self._resolve(generation_config, named_cache(kwargs, CACHE))
        processors, criteria = [*(logits_processor or [])], [*(stopping_criteria or [])]
        prefix_length = _prefix_length(kwargs.get("decoder_input_ids"), config.decoder_start_token_id)
        obstacle = self._obstacle_to_search(config, kwargs, criteria)
        if over_source is not None:
            limits = length_limits(self.config, _source_lengths(kwargs), over_source, prefix_length)
            criteria.append(LengthPerSentence(limits, prefix_length))
            if config.forced_eos_token_id is not None:
                processors.append(EndPerSentence(limits, prefix_length, config.forced_eos_token_id))
            config.max_new_tokens, config.max_length = int(limits.max()), None
        if phrases is not None:
            limit = config.max_length if config.max_new_tokens is None else config.max_new_tokens + prefix_length
            room = int(limits.min()) + prefix_length if over_source is not None else limit
            room = None if room is None else room - 1  # without the start token
            processors.append(forced_phrases(phrases, config, self.config, room))
        if ensemble is not None:
            require_ensemble(self, ensemble, ids, config, kwargs)
            if obstacle is not None:
                raise ValueError(f"ensemble: cannot be decoded with {obstacle}; leave it out")
            kwargs["ensemble"] = ensemble
        if obstacle is not None:
            processors.append(FiniteLogits())  # the last, because another one may replace NaN and infinity
        elif kwargs.get("custom_generate") is None:
            # To a loop of the caller, transformers passes neither `synced_gpus` nor the `tokenizer`.
            kwargs["custom_generate"] = partial(search, synced_gpus=self._is_synced(kwargs.pop("synced_gpus", None)))
            if config.stop_strings is not None and kwargs.get("tokenizer") is not None:
                criteria.append(StopStringCriteria(kwargs.pop("tokenizer"), config.stop_strings))
                config.stop_strings = None
        processors, criteria = LogitsProcessorList(processors), StoppingCriteriaList(criteria)
        return super().generate(inputs, config, processors, criteria, **kwargs)

    def _resolve(
        self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        """The search that keywords, a given configuration and the model's determine, and the other keywords.

        A value that is None in a configuration is taken from the next, as transformers does. A keyword that is None
        removes what they have; if a search cannot be without it, it is taken from them.

        Raises:
            ValueError: A number of beams, sequences or tokens is below 1.
        """
        counts = ("num_beams", "num_return_sequences", "max_new_tokens", "max_length")
        for name in counts:
            values = (kwargs.get(name), getattr(generation_config, name, None), getattr(self.generation_config, name))
            value = next((each for each in values if each is not None), 1)
            if not (isinstance(value, Integral) and int(value) >= 1):
                raise ValueError(f"{name}: must be an integer of at least 1, is {value!r}")
        for name in ("max_new_tokens_over_source", "labels"):  # a trainer passes its labels along
            kwargs.pop(name, None)
        config = GenerationConfig() if generation_config is None else copy.deepcopy(generation_config)
        config.update(**self.generation_config.to_dict(), defaults_only=True, allow_custom_entries=True)
        if not hasattr(config, "length_penalty_type"):
            config.length_penalty_type = "transformers"  # else the keyword would be refused
        removed = {name for name, value in kwargs.items() if value is None and hasattr(config, name)}
        config.__class__ = ResolvedGenerationConfig
        config.removed = sorted(removed - {*counts, "length_penalty"})
        others = config.update(
            **{name: value for name, value in kwargs.items() if value is not None or name in config.removed}
        )
        if (config.num_beams or 1) == 1:  # transformers would warn of the model's, which are for beams
            config.early_stopping, config.length_penalty = False, 1.0
        return config, others

    def _obstacle_to_search(
        self, config: GenerationConfig, kwargs: Mapping[str, Any], criteria: list[StoppingCriteria]
    ) -> str | None:
        """The keyword, or the mode, with which `search` cannot replace transformers' decoding loop; None if it can."""
        mode = config.get_generation_mode(kwargs.get("assistant_model"))
        if mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE):
            if kwargs.get("streamer") is not None:
                raise ValueError("streamer: beam search has no words to stream before it ends; give num_beams=1")
            return None
        cache = kwargs.get(CACHE)
        reasons = {
            mode.value: mode != GenerationMode.GREEDY_SEARCH,
            "streamer": kwargs.get("streamer") is not None,
            "stopping_criteria": criteria,  # they may depend on the number of rows; `search` has two for each sentence
            "return_dict_in_generate": config.return_dict_in_generate,
            CACHE: cache is not None and cache.get_seq_length() > 0,
            "synced_gpus": self._is_synced(kwargs.get("synced_gpus")),
        }
        return next((name for name, is_there in reasons.items() if is_there), None)

    def _is_synced(self, synced_gpus: bool | None) -> bool:
        """Whether ranks share weights, and call `forward` together; by default as transformers decides."""
        if synced_gpus is not None:
            return synced_gpus
        is_sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(self)
        return is_sharded and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def search(
    model: VaswaniGenerationMixin,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    inputs_tensor: torch.Tensor | None = None,
    ensemble: Sequence[VaswaniGenerationMixin] = (),
    observer: Callable[[BeamSearch, Hypotheses, torch.Tensor], None] | None = None,
    **model_kwargs: Any,
) -> Any:
    """The search of section 6.1, as a decoding loop for `generate(custom_generate=search)`.

    With one beam it is greedy search: the first EOS ends a sentence. Finished sentences leave the batch.

    Args:
        model: The model.
        input_ids: `[sentences * num_beams, prefix]`, as all tensors in `model_kwargs`.
        logits_processor: The caller's processors, and what `generation_config` asks for.
        stopping_criteria: The caller's criteria, and what `generation_config` asks for.
        generation_config: As `generate` has prepared it.
        synced_gpus: Whether ranks share weights, so that each calls `forward` until all are done.
        inputs_tensor: `[sentences, source]`, which the other models of an ensemble encode, too.
        ensemble: Other models; see `VaswaniGenerationMixin.generate`.
        observer: See `BeamSearch`.
        model_kwargs: For `forward`, with `encoder_outputs`.

    Returns:
        `[sentences * num_return_sequences, length]`, or with `return_dict_in_generate` an output of transformers.
    """
    config = generation_config
    if config.num_beams == 1:
        config = copy.copy(config)
        config.early_stopping, config.length_penalty = True, 1.0
    cache = model_kwargs.get(CACHE)
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError(f"{CACHE}: beam search has its own cache; give the prefix as decoder_input_ids")
    prefixes = input_ids[:: config.num_beams]
    beams = BeamSearch(prefixes, logits_processor, stopping_criteria, config, observer)
    needs_outputs = config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states)
    outputs: list[Seq2SeqLMOutput] | None = [] if needs_outputs else None
    obstacle = next(filter(None, (obstacle_to_speed(each, config, model_kwargs) for each in (model, *ensemble))), None)
    if needs_outputs:
        obstacle = "output_attentions" if config.output_attentions else "output_hidden_states"
    elif synced_gpus:
        obstacle = "synced_gpus"
    elif obstacle is not None and not ensemble:
        _logger.warning_once(
            f"generate: the search calls the model's forward at each step, which is slow, because of {obstacle}"
        )
    decoder: StepDecoder
    if obstacle is None:
        mask = model_kwargs.get("attention_mask")
        mask = None if mask is None else mask[:: config.num_beams]
        states = [model_kwargs["encoder_outputs"][0][:: config.num_beams]]  # [sentences, source, d_model] each
        states += [each.get_encoder()(input_ids=inputs_tensor, attention_mask=mask)[0] for each in ensemble]
        room = (config.num_beams, beams.prefix_length, beams.max_length)
        decoders = [
            IncrementalDecoder(each.get_decoder(), each.get_output_embeddings(), encoded, mask, *room)
            for each, encoded in zip((model, *ensemble), states, strict=True)
        ]
        decoder = EnsembleDecoder(decoders) if ensemble else decoders[0]
    elif ensemble:
        raise ValueError(f"ensemble: cannot be decoded with {obstacle}; leave it out")
    else:
        decoder = ForwardDecoder(model, model_kwargs, config, outputs)
    while _on_any_rank(not beams.is_done, synced_gpus, input_ids.device):
        if beams.is_done:  # the other ranks need this one in the collectives of `forward`
            ForwardDecoder(model, {**model_kwargs, CACHE: None}, config).prefill(prefixes)
        else:
            beams.advance(decoder)
    result = beams.result()
    if not config.return_dict_in_generate:
        return result.sequences
    if obstacle is not None:
        result[CACHE] = cache
    for name, value in _attentions_and_states(outputs or [], model_kwargs["encoder_outputs"]).items():
        result[name] = value
    return result


def obstacle_to_speed(
    model: VaswaniGenerationMixin, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> str | None:
    """What keeps `IncrementalDecoder` from replacing the model's `forward`, in words; None if nothing does."""
    if not config.use_cache:
        return "use_cache=False"
    unknown = [name for name in model_kwargs if name not in _KNOWN_INPUTS and model_kwargs[name] is not None]
    if unknown:
        return unknown[0]
    replaced = getattr(model.prepare_inputs_for_generation, "__func__", None)
    if replaced is not GenerationMixin.prepare_inputs_for_generation:
        return "a prepare_inputs_for_generation of its own, as of an adapter"
    if not model.has_own_classes():
        return "a layer or forward of another class"
    decoder, lm_head = model.get_decoder(), model.get_output_embeddings()
    implementation = decoder.config._attn_implementation
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, None)  # None: eager
    if attention is not None and not attention.__module__.startswith("transformers.integrations."):
        return f"the attention implementation {implementation!r}"
    for module in (model, model.model, *decoder.modules(), *lm_head.modules()):
        if calls_more_than_its_class(module):
            return f"a hook or another forward of {type(module).__name__}"
    if any(module.training for module in decoder.modules()):
        return "training mode; call eval()"
    device = model_kwargs["encoder_outputs"][0].device
    # Weights may be spread over devices, left on a disk, or split among processes.
    for weight in (*decoder.parameters(), *lm_head.parameters()):
        if weight.device != device or hasattr(weight, "device_mesh"):
            return "weights on several devices"
    return None


def calls_more_than_its_class(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` set on the instance, change what a module computes."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    # transformers never removes its hooks that record attentions; they do nothing unless attentions are requested.
    if any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks):
        return True
    forward = vars(module).get("forward")
    if getattr(forward, "__module__", None) == "accelerate.utils.operations":  # its wrapper for mixed precision
        forward = inspect.unwrap(forward)
    own = type(module).forward  # accelerate, on removing its wrapper, restores it without the decorators
    return forward is not None and getattr(forward, "__func__", forward) not in (own, inspect.unwrap(own))


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


class ResolvedGenerationConfig(GenerationConfig):
    """The search of one call, of whose `removed` fields neither the model nor transformers has a default."""

    def update(self, defaults_only: bool = False, **kwargs: Any) -> dict[str, Any]:
        removed = self.removed if defaults_only else ()
        return super().update(defaults_only, **{name: kwargs[name] for name in kwargs if name not in removed})


class UnfilledGenerationConfig(GenerationConfig):
    """A model's `generation_config`, which remembers what transformers' trainer has filled in, to forget it again."""

    def update(self, defaults_only: bool = False, allow_custom_entries: bool = False, **kwargs: Any) -> dict[str, Any]:
        before = {name: getattr(self, name, None) for name in kwargs}
        unused = super().update(defaults_only=defaults_only, allow_custom_entries=allow_custom_entries, **kwargs)
        if defaults_only:
            filled = self.__dict__.setdefault("filled", {})
            filled.update({name: kwargs[name] for name, value in before.items() if value is None})
        return unused

    def forget_defaults(self) -> None:
        """Remove what was filled in, unless it has been changed since."""
        for name, value in self.__dict__.pop("filled", {}).items():
            if getattr(self, name, None) == value:
                setattr(self, name, None)


class OwnGenerationConfig:
    """Keeps transformers' defaults out of a model's `generation_config`; must be the first base class."""

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's search, without defaults; an object assigned to it becomes an `UnfilledGenerationConfig`."""
        self._search.forget_defaults()
        return self._search

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        config.__class__ = UnfilledGenerationConfig
        self._search = config

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; see `transformers.PreTrainedModel.from_pretrained`.

        If `generation_config.json` is missing or has no search options, the model gets `paper_generation_config`.
        """
        loaded = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]  # a mixin
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with `output_loading_info`
        if {name for name in model.generation_config.to_diff_dict() if name[0] != "_"} <= _NOT_OF_SEARCH:
            model.generation_config = paper_generation_config(model.config)
        return loaded
