"""Section 6.1 of the paper: the options of the search, `generate`, and the decoding loop that it runs."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin, GenerationMode
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList, StopStringCriteria
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import logging

from .beam_search_vaswani import NON_FINITE_LOGITS, BeamSearch, ForcedEOSPerSentence, Hypotheses, LengthPerSentence
from .keywords_vaswani import CACHE, as_encoder_outputs, named_cache
from .languages_vaswani import Directions
from .search_options_vaswani import (
    LENGTH_FIELDS,
    OVER_SOURCE,
    SPECIAL_IDS,
    LengthLimit,
    SearchOptions,
    has_filled_length,
    set_options,
)
from .step_decoder_vaswani import ForwardDecoder, IncrementalDecoder, StepDecoder


_logger = logging.get_logger(__name__)

# Arguments of `forward` that IncrementalDecoder uses, or that have no effect on the search.
_KNOWN_INPUTS = {CACHE, "encoder_outputs", "attention_mask", "inputs_embeds", "decoder_input_ids"}
_KNOWN_INPUTS |= {"use_cache", "logits_to_keep", "output_attentions", "output_hidden_states"}

# Options that every search needs. Passing None as a keyword keeps the configured value.
_NEEDED = {"num_beams", "num_return_sequences", "length_penalty"}


def paper_generation_config(config: PreTrainedConfig) -> GenerationConfig:
    """The search of section 6.1: beam 4, alpha = 0.6, at most source length + 50 tokens.

    `length_penalty_type` is "gnmt", `score = log P / ((5 + |Y|) / 6)^alpha`, or "transformers",
    `score = log P / |Y|^alpha`; |Y| counts EOS in both. `max_new_tokens_over_source` limits each sentence on its own.
    Keywords of `generate` override the configuration passed to it, which overrides the model's. In each of the three,
    `max_new_tokens` and `max_length` override `max_new_tokens_over_source`, except `max_length=20`, a default of
    transformers that its `Seq2SeqTrainer` fills in.
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


def has_search_options(config: GenerationConfig) -> bool:
    """Whether a configuration sets anything about the search."""
    # Without a generation_config.json, transformers copies these from config.json.
    return not set_options(config).keys() <= {*SPECIAL_IDS, "use_cache"}


def merge_options(
    model: PreTrainedModel, generation_config: GenerationConfig | None, keywords: Mapping[str, Any]
) -> tuple[GenerationConfig, dict[str, Any]]:
    """Merge the options of a `generate` call into one configuration; also return the other keywords.

    Keywords override `generation_config`, which overrides the model's. A value of None in a configuration is taken from
    the next one, as in transformers. A keyword of None removes the option, unless every search needs it. The first of
    the three that sets a length limit determines it; the result has exactly one of `LENGTH_FIELDS`.
    """
    config = GenerationConfig() if generation_config is None else copy.deepcopy(generation_config)
    scopes = (keywords, vars(config), vars(model.generation_config))
    limit = next(filter(None, map(LengthLimit.from_options, scopes)), LengthLimit())
    config.update(**model.generation_config.to_dict(), defaults_only=True, allow_custom_entries=True)
    if not hasattr(config, "length_penalty_type"):
        config.length_penalty_type = "transformers"  # else the keyword would not count as an option
    keywords = {name: value for name, value in keywords.items() if name not in LENGTH_FIELDS}
    removed = {name for name in keywords if keywords[name] is None and hasattr(config, name)}
    others = config.update(
        **{name: value for name, value in keywords.items() if value is not None or name in removed - _NEEDED}
    )
    for name in LENGTH_FIELDS:
        setattr(config, name, limit.value if name == limit.field else None)
    # If an option is None, transformers would take it from the model's configuration again.
    return config, {**others, **dict.fromkeys(removed - _NEEDED)}


def search_options(model: PreTrainedModel, generate_kwargs: Mapping[str, Any]) -> SearchOptions:
    """The options with which `model.generate(**generate_kwargs)` searches."""
    keywords = {**generate_kwargs}
    config, _ = merge_options(model, keywords.pop("generation_config", None), keywords)
    return SearchOptions.from_fields(vars(config), getattr(model.config, "max_positions", None))


class FiniteLogits(LogitsProcessor):
    """Raises a ValueError if the largest score is NaN or infinite."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not scores.max() < math.inf:  # also if any score is NaN, because the maximum is then NaN
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
        """Translate, with the arguments and results of `transformers.GenerationMixin.generate`.

        Without `attention_mask`, padding is recognized by its id. With beams, and in greedy search, `search` replaces
        transformers' decoding loop, unless `custom_generate` does. Greedy search is left to transformers if it streams,
        returns more than ids, continues a cache, or uses the caller's stopping criteria.

        Raises:
            ValueError: There is no source, or ids are not `[batch, source]`; an option is invalid; logits are NaN; the
                model has several directions, and a source begins with no language tag; or `synced_gpus` is true.
        """
        if kwargs.get("encoder_outputs") is not None:  # a copy, since transformers repeats it in place for beams
            kwargs["encoder_outputs"] = as_encoder_outputs(kwargs["encoder_outputs"])
        lengths = self._prepare_source(inputs, kwargs)
        if has_filled_length(vars(self.generation_config)):
            self.generation_config.max_length = None
        kwargs.pop("labels", None)  # a trainer passes them along
        config, kwargs = merge_options(self, generation_config, named_cache(kwargs, CACHE))
        limit = SearchOptions.from_fields(vars(config), self.config.max_positions).limit
        if (config.num_beams or 1) == 1:  # transformers would warn about the model's values
            config.early_stopping, config.length_penalty = False, 1.0
        processors, criteria = [*(logits_processor or [])], [*(stopping_criteria or [])]
        loop = kwargs.pop("custom_generate", None)
        if loop is None and self._is_search(config, kwargs, criteria):
            loop = search
            if kwargs.pop("synced_gpus", None):
                raise ValueError(
                    "synced_gpus: the search needs the whole model on each process; leave FSDP and ZeRO-3 out"
                )
            # transformers does not pass the `tokenizer` to such a loop.
            if config.stop_strings is not None and kwargs.get("tokenizer") is not None:
                criteria.append(StopStringCriteria(kwargs.pop("tokenizer"), config.stop_strings))
                config.stop_strings = None
        prefix_length, prefix = 1, kwargs.get("decoder_input_ids")
        if prefix is not None:  # transformers adds the start token if no row has it
            prefix_length = prefix.shape[1] + int(not prefix[:, 0].eq(config.decoder_start_token_id).any())
        limits = torch.tensor([limit.new_tokens(length, prefix_length) for length in lengths])  # [batch]
        if limit.field == OVER_SOURCE:
            criteria.append(LengthPerSentence(limits, prefix_length))
            if config.forced_eos_token_id is not None:  # transformers forces it at the largest limit of a batch
                processors.insert(0, ForcedEOSPerSentence(limits, prefix_length, config.forced_eos_token_id))
        config.max_new_tokens, config.max_length = int(limits.max()), None
        if loop is None:
            processors.append(FiniteLogits())  # last, because another processor may replace NaN and infinity
        processors, criteria = LogitsProcessorList(processors), StoppingCriteriaList(criteria)
        if not config.return_dict_in_generate:
            kwargs |= self._encode_without_padding(inputs, kwargs)
        return super().generate(inputs, config, processors, criteria, custom_generate=loop, **kwargs)

    def _prepare_source(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> list[int]:
        """Check the source ids, mask their padding, and return each source's number of tokens without padding."""
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if ids is not None:
            if ids.dim() != 2 or not ids.numel():
                raise ValueError(
                    f"input_ids: have the shape {list(ids.shape)}; give [batch, source], neither of them 0; "
                    "for a single sentence, input_ids[None]"
                )
            if kwargs.get("attention_mask") is None:
                kwargs["attention_mask"] = ids.ne(self.config.pad_token_id).long()  # [batch, source]
            Directions(self.config).require_tagged(ids)
        if kwargs.get("attention_mask") is not None:
            return kwargs["attention_mask"].sum(-1).tolist()
        states = kwargs.get("inputs_embeds")
        if states is None:
            if kwargs.get("encoder_outputs") is None:
                raise ValueError("generate needs a source: input_ids, inputs_embeds or encoder_outputs")
            states = kwargs["encoder_outputs"][0]  # [batch, source, d_model]
        return [states.shape[1]] * states.shape[0]

    def _encode_without_padding(self, inputs: torch.Tensor | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `encoder_outputs` for the tokens alone; return {} if `forward` must compute them.

        On a CPU, products for padding take as long as products for tokens.
        """
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if ids is None or ids.device.type != "cpu" or kwargs.get("encoder_outputs") is not None:
            return {}
        encoder, mask = self.get_encoder(), kwargs["attention_mask"]
        has_padding = mask.shape == ids.shape and not bool(mask.all())
        if not (has_padding and self.is_unmodified() and encoder.can_encode_tokens()):
            return {}
        return {"encoder_outputs": encoder.encode_tokens(ids, mask)}

    def _is_search(self, config: GenerationConfig, kwargs: Mapping[str, Any], criteria: list[StoppingCriteria]) -> bool:
        """Whether `search` decodes, rather than one of transformers' loops."""
        mode = config.get_generation_mode(kwargs.get("assistant_model"))
        if kwargs.get("streamer") is not None:  # transformers refuses it with beams
            return False
        if mode != GenerationMode.GREEDY_SEARCH:
            return mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
        cache = kwargs.get(CACHE)
        continues = cache is not None and cache.get_seq_length() > 0
        # Criteria may depend on the number of rows: `search` has two for each sentence.
        return not (continues or criteria or config.return_dict_in_generate)


def search(
    model: VaswaniGenerationMixin,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    observer: Callable[[BeamSearch, Hypotheses, torch.Tensor], None] | None = None,
    make_decoder: Callable[[BeamSearch], StepDecoder] | None = None,
    beam_search: Callable[..., BeamSearch] = BeamSearch,
    **model_kwargs: Any,
) -> Any:
    """The search of section 6.1, as a decoding loop for `generate(custom_generate=search)`.

    With one beam it is greedy search: the first EOS ends a sentence. Finished sentences leave the batch.

    `IncrementalDecoder` computes each step. The model's `forward`, which is slow, replaces it with `use_cache=False`,
    if attentions or hidden states are returned, and if `IncrementalDecoder` would compute something else: with inputs
    that it does not know, or for a model that is not `is_unmodified`.

    Args:
        model: The model.
        input_ids: `[sentences * num_beams, prefix]`; tensors in `model_kwargs` have as many rows.
        logits_processor, stopping_criteria: The caller's, and those that `generation_config` requests.
        generation_config: Prepared by `generate`.
        observer: See `BeamSearch`.
        make_decoder: Creates the step decoder, in place of the default.
        beam_search: Class of the search.
        model_kwargs: Arguments of `forward`, `encoder_outputs` included.

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
    beams = beam_search(prefixes, logits_processor, stopping_criteria, config, observer)
    outputs: list[Seq2SeqLMOutput] | None = None
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        outputs = []
    decoder: StepDecoder
    if make_decoder is not None:
        decoder = make_decoder(beams)
    elif not config.use_cache or outputs is not None or not _computes_forward(model, model_kwargs):
        decoder = ForwardDecoder(model, model_kwargs, config, outputs)
    else:
        mask = model_kwargs.get("attention_mask")
        mask = None if mask is None else mask[:: config.num_beams]
        decoder = incremental_decoder(model, beams, model_kwargs["encoder_outputs"][0][:: config.num_beams], mask)
    while not beams.is_done:
        beams.advance(decoder)
    result = beams.result()
    if not config.return_dict_in_generate:
        return result.sequences
    if isinstance(decoder, ForwardDecoder):
        result[CACHE] = cache
    for name, value in _attentions_and_states(outputs or [], model_kwargs["encoder_outputs"]).items():
        result[name] = value
    return result


def incremental_decoder(
    model: VaswaniGenerationMixin, beams: BeamSearch, encoded: torch.Tensor, mask: torch.Tensor | None
) -> IncrementalDecoder:
    """The fast decoder of a model, for sources `encoded` `[sentences, source, d_model]` with their `mask`."""
    sizes = (beams.num_beams, beams.prefix_length, beams.max_length)
    return IncrementalDecoder(model.get_decoder(), model.get_output_embeddings(), encoded, mask, *sizes)


def _computes_forward(model: VaswaniGenerationMixin, model_kwargs: Mapping[str, Any]) -> bool:
    """Whether `IncrementalDecoder` computes what `forward` does; warns if it does not."""
    unknown = any(model_kwargs[name] is not None for name in model_kwargs.keys() - _KNOWN_INPUTS)
    if not unknown and model.is_unmodified():
        return True
    _logger.warning_once(
        "generate: the search calls the model's forward at each step, which is slow, because of inputs, hooks, layers, "
        "an attention implementation or a training mode that its fast decoder does not know"
    )
    return False


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
