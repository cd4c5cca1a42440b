"""Options of a search (6.1): the paper's defaults, what keywords and configurations resolve to, and length limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.stopping_criteria import StoppingCriteria


OVER_SOURCE = "max_new_tokens_over_source"
LENGTH_FIELDS = ("max_new_tokens", "max_length", OVER_SOURCE)  # in one configuration, the first of them counts

# Fields that do not concern the search. Without a generation_config.json, transformers copies some from config.json.
_NOT_SEARCH = {
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


@dataclass(frozen=True)
class LengthLimit:
    """Number of tokens that a search may add to its prefix, EOS included.

    Attributes:
        field: The option that sets it, one of `LENGTH_FIELDS`; transformers' default is 20 new tokens.
        value: Its value.
        positions: Tokens for which the model has positions; None if they are unlimited.
    """

    field: str = "max_new_tokens"
    value: int = 20
    positions: int | None = None

    def new_tokens(self, source_length: int, prefix_length: int = 1) -> int:
        """The limit for a source with EOS, and a decoder prefix with the start token."""
        added = {"max_length": -prefix_length, OVER_SOURCE: source_length}.get(self.field, 0)
        limit = self.value + added
        if self.positions is not None:
            limit = min(limit, self.positions + 1 - prefix_length)  # the last token is not an input of the decoder
        return max(limit, 1)


@dataclass(frozen=True)
class SearchOptions:
    """What decides a search beside the logits; the defaults are transformers'."""

    num_beams: int = 1
    num_return_sequences: int = 1
    do_sample: bool = False
    length_penalty: float = 1.0
    length_penalty_type: str = "transformers"
    stop_strings: str | list[str] | None = None
    limit: LengthLimit = LengthLimit()

    @classmethod
    def resolve(
        cls, *scopes: Mapping[str, Any] | GenerationConfig | None, positions: int | None = None
    ) -> "SearchOptions":
        """The options that `scopes` determine; each overrides those after it, but for what it lacks or has as None.

        Args:
            scopes: Keywords of `generate`, and configurations.
            positions: See `LengthLimit`.

        Raises:
            ValueError: A number of beams, sequences or tokens is no integer, or is too small; or
                `length_penalty_type` is unknown.
        """
        rows = [scope if isinstance(scope, Mapping) else vars(scope) for scope in scopes if scope is not None]
        limits = (
            LengthLimit(field, row[field], positions)
            for row in rows
            for field in LENGTH_FIELDS
            if row.get(field) is not None
        )
        limit = next(limits, LengthLimit(positions=positions))
        names = [field.name for field in fields(cls) if field.name != "limit"]
        values = {name: next((row[name] for row in rows if row.get(name) is not None), None) for name in names}
        resolved = cls(**{name: value for name, value in values.items() if value is not None}, limit=limit)
        counts = {name: getattr(resolved, name) for name in ("num_beams", "num_return_sequences")}
        for name, value in {**counts, limit.field: limit.value}.items():
            least = 0 if name == OVER_SOURCE else 1
            if not isinstance(value, Integral) or int(value) < least:
                raise ValueError(f"{name}: must be an integer of at least {least}, is {value!r}")
        if (kind := resolved.length_penalty_type) not in ("gnmt", "transformers"):
            raise ValueError(f'length_penalty_type: must be "gnmt" or "transformers", is {kind!r}')
        return resolved

    @classmethod
    def for_call(cls, model: PreTrainedModel, generate_kwargs: Mapping[str, Any]) -> "SearchOptions":
        """The options with which `model.generate(**generate_kwargs)` searches."""
        scopes = (generate_kwargs, generate_kwargs.get("generation_config"), model.generation_config)
        return cls.resolve(*scopes, positions=getattr(model.config, "max_positions", None))


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
        self.limits = self.limits[sentences.to(self.limits.device)]


def _repeat_to_rows(limits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Repeat limits for the beams or samples of each sentence: `[rows]`."""
    return limits.repeat_interleave(input_ids.shape[0] // limits.shape[0]).to(input_ids.device)


class SearchConfig(GenerationConfig):
    """A `generation_config` that can forget defaults filled in by `update(defaults_only=True)`.

    transformers' Seq2SeqTrainer fills them into the model's generation_config at its first batch, `max_length=20` among
    them, and would save them with each checkpoint.
    """

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


class SearchConfigMixin:
    """Keeps transformers' defaults out of a model's `generation_config`; must be the first base class."""

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's search, without defaults; an object assigned to it stays the same, but for its class."""
        self._search.forget_defaults()
        return self._search

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        config.__class__ = SearchConfig
        self._search = config

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; see `transformers.PreTrainedModel.from_pretrained`.

        If `generation_config.json` is missing or has no search options, the model gets `paper_generation_config`.
        """
        loaded = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]  # a mixin
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with `output_loading_info`
        if {name for name in model.generation_config.to_diff_dict() if name[0] != "_"} <= _NOT_SEARCH:
            model.generation_config = paper_generation_config(model.config)
        return loaded
