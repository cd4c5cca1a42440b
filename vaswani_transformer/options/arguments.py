"""Options as fields of dataclasses, with the values they accept and the results they decide."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..system.files import Json


# The results that depend on an option; None if there are none.
#   inputs: names or creates input files, which records identify by content
#   data: the encoded pairs, and with them the weights
#   weights: the trained weights, but not the encoded pairs
#   translations: all translations
#   samples: translations that are sampled
Decision: TypeAlias = Literal["inputs", "data", "weights", "translations", "samples"]


@dataclass(frozen=True)
class Interval:
    """The finite numbers that an option accepts; `above` and `below` are exclusive bounds."""

    minimum: float = -math.inf
    maximum: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, number: float) -> bool:
        return self.minimum <= number <= self.maximum and self.above < number < self.below

    def __str__(self) -> str:
        bounds = {"at least": self.minimum, "at most": self.maximum, "above": self.above, "below": self.below}
        return " and ".join(f"{word} {bound:,.10g}" for word, bound in bounds.items() if math.isfinite(bound))


COUNT = Interval(minimum=1, maximum=2**31 - 1)
POSITIVE = Interval(above=0)
NOT_NEGATIVE = Interval(minimum=0)
SHARE = Interval(minimum=0, below=1)
SEED = Interval(minimum=0, maximum=2**32 - 1)  # seeds that NumPy accepts
BEAMS = Interval(minimum=1, maximum=2**10)  # more exhaust the memory
ALPHA = Interval(minimum=-100, maximum=100)

# Of training and of decoding; "auto" is resolved by measuring, or by the saved weights.
Precision: TypeAlias = Literal["auto", "float32", "bf16", "fp16"]


class _Metadata(dict[str, object]):
    """What a field knows of its option. Of this, transformers' `HfArgumentParser` finds the help alone.

    It passes to argparse all that is listed or, in older releases, copied.
    """

    def keys(self) -> Any:
        return ["help"]

    def copy(self) -> dict[str, object]:
        return {name: self[name] for name in self.keys()}


def option(default: Any, help: str, interval: Interval | None = None, **metadata: object) -> Any:
    """A dataclass field that `RecipeParser`, or transformers' `HfArgumentParser`, turns into an option.

    Args:
        default: Its default; `MISSING` for a required option.
        help: Its line in `--help`.
        interval: The numbers that it accepts.
        metadata: `decides`: a `Decision`; `paper`: the paper's value, or a tuple with a value for each of its models;
            `is_shown`: False if only `--help_all` shows it; `is_first`: True if everyone needs it first in `--help`.
    """
    metadata = _Metadata({"help": help, "is_shown": True, **metadata})
    if interval is not None:
        metadata["interval"] = interval
    if default is dataclasses.MISSING:
        return dataclasses.field(kw_only=True, metadata=metadata)  # so that it may follow options with defaults
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def decisive_names(kind: type, *decisions: Decision) -> list[str]:
    """Names of the options of a dataclass with one of these decisions."""
    return [field.name for field in dataclasses.fields(kind) if field.metadata.get("decides") in decisions]


def decisive_values(instance: Any, *decisions: Decision) -> dict[str, Json]:
    """Names and values, for a record, of the options of a dataclass with one of these decisions."""
    return {name: as_json(getattr(instance, name)) for name in decisive_names(type(instance), *decisions)}


def as_json(value: object) -> Json:
    """The value of an option as records store it; the text of an enumeration."""
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value if isinstance(value, bool | int | float | None) else str(getattr(value, "value", value))


def check_values(instance: Any, kind: type | None = None) -> None:
    """Check the numbers of `instance`, also in lists, against the intervals of a dataclass's fields; None passes.

    The dataclass is `kind`, by default the class of `instance`.

    Raises:
        ValueError: A number lies outside its interval. The message starts with the field's name.
    """
    for field in dataclasses.fields(kind or instance):
        value, interval = getattr(instance, field.name, None), field.metadata.get("interval")
        for number in value if isinstance(value, list) else [value]:
            if interval is not None and number is not None and number not in interval:
                raise ValueError(f"{field.name}: must be {interval}, is {number!r}")


def refuse_unused(instance: Any, unused: Mapping[str, str]) -> None:
    """Refuse options that would have no effect; `unused` has advice for each.

    Raises:
        ValueError: A field differs from its default. The message starts with the field's name.
    """
    for field in dataclasses.fields(instance):
        if field.name in unused and getattr(instance, field.name) not in (field.default, None):
            raise ValueError(f"{field.name}: has no effect here; {unused[field.name]}")
