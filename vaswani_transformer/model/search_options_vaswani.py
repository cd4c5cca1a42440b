"""Options of a search by the model or an exported one: its length limit, and the number of sentences in its batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from transformers import GenerationConfig


# Fields of config and generation_config with the ids of special tokens.
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")

OVER_SOURCE = "max_new_tokens_over_source"
LENGTH_FIELDS = ("max_new_tokens", "max_length", OVER_SOURCE)  # in one configuration, the first of them counts

# Tokens that a batch may generate, in all its beams, for each source token of `tokens_per_batch`. With the paper's
# search only sentences below 17 tokens reach this limit, since each may generate 50 tokens more than its source.
_GENERATED_PER_SOURCE_TOKEN = 16


def set_options(config: GenerationConfig) -> dict[str, Any]:
    """The options that a generation_config sets, without the fields that transformers adds to its file."""
    fields = config.to_diff_dict().items()
    return {name: value for name, value in fields if name[0] != "_" and name != "transformers_version"}


def has_filled_length(options: Mapping[str, Any]) -> bool:
    """Whether options have `max_length=20` beside `max_new_tokens_over_source`, as `Seq2SeqTrainer` fills it in.

    It has no effect, but transformers warns of it, so `generate` and `save_pretrained` drop it.
    """
    return options.get(OVER_SOURCE) is not None and options.get("max_length") == 20


@dataclass(frozen=True)
class LengthLimit:
    """Number of tokens that a search may add to its prefix, EOS included.

    Attributes:
        field: The option that sets it, one of `LENGTH_FIELDS`; transformers' default is 20 new tokens.
        value: Its value.
        positions: Number of positions that the model has; None if they are unlimited.
    """

    field: str = "max_new_tokens"
    value: int = 20
    positions: int | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], positions: int | None = None) -> "LengthLimit | None":
        """The limit that options set; None if they set none."""
        names = [name for name in LENGTH_FIELDS if options.get(name) is not None]
        if has_filled_length(options):
            names.remove("max_length")
        return cls(names[0], options[names[0]], positions) if names else None

    def new_tokens(self, source_length: int, prefix_length: int = 1) -> int:
        """The limit, at least 1, for a source with EOS, and a decoder prefix with the start token."""
        added = {"max_length": -prefix_length, OVER_SOURCE: source_length}.get(self.field, 0)
        limit = self.value + added
        if self.positions is not None:
            limit = min(limit, self.positions + 1 - prefix_length)  # the last token is not an input of the decoder
        return max(limit, 1)


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search that batching, scoring and exporters read; the defaults are transformers'."""

    num_beams: int = 1
    num_return_sequences: int = 1
    do_sample: bool = False
    length_penalty: float = 1.0
    length_penalty_type: str = "transformers"
    stop_strings: str | list[str] | None = None
    limit: LengthLimit = LengthLimit()

    @classmethod
    def from_fields(cls, config: Mapping[str, Any], positions: int | None = None) -> "SearchOptions":
        """Read the options from the fields of one generation_config; `positions` as in `LengthLimit`.

        Raises:
            ValueError: A number of beams, sequences or tokens is not an integer, or is too small; or
                `length_penalty_type` is unknown.
        """
        limit = LengthLimit.from_options(config, positions) or LengthLimit(positions=positions)
        values = {field.name: config.get(field.name) for field in fields(cls)}
        options = cls(**{name: value for name, value in values.items() if value is not None} | {"limit": limit})
        counts = {name: getattr(options, name) for name in ("num_beams", "num_return_sequences")}
        for name, value in {**counts, limit.field: limit.value}.items():
            least = 0 if name == OVER_SOURCE else 1
            if not isinstance(value, Integral) or int(value) < least:
                raise ValueError(f"{name}: must be an integer of at least {least}, is {value!r}")
        if (kind := options.length_penalty_type) not in ("gnmt", "transformers"):
            raise ValueError(f'length_penalty_type: must be "gnmt" or "transformers", is {kind!r}')
        return options

    def batch_tokens(self, length: int) -> int:
        """Tokens of `tokens_per_batch` that a source of `length` tokens takes up: its own or its generated ones."""
        generated = max(self.num_beams, self.num_return_sequences) * self.limit.new_tokens(length)
        return max(length, -(-generated // _GENERATED_PER_SOURCE_TOKEN))


def similar_length_batches(
    lengths: list[int], cost: Callable[[int], int], tokens_per_batch: int, batch_size: int | None = None
) -> Iterator[list[int]]:
    """Indices into `lengths`, the longest first; a length takes up `cost(length)` of `tokens_per_batch`."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        stop = start + max(1, batch_size or tokens_per_batch // cost(lengths[order[start]]))
        yield order[start:stop]
        start = stop
