"""Options of the recipes, from a YAML file and the command line, checked before any work."""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from transformers import HfArgumentParser
from transformers.utils import logging

from ..io.console import one_line
from ..io.files import Json
from .config_file import read_config


# What an option of a training, or of a translation, decides: see `option`.
Decision: TypeAlias = Literal["inputs", "data", "weights", "translations", "samples"]

_LARGEST = 1e12  # no sensible option needs more


@dataclass(frozen=True)
class Interval:
    """The numbers that an option accepts.

    Attributes:
        minimum: Smallest number accepted.
        maximum: Largest number accepted.
        above: Exclusive lower bound.
        below: Exclusive upper bound.
    """

    minimum: float = -_LARGEST
    maximum: float = _LARGEST
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, number: float) -> bool:
        return self.minimum <= number <= self.maximum and self.above < number < self.below

    def __str__(self) -> str:
        bounds = {"at least": self.minimum, "at most": self.maximum, "above": self.above, "below": self.below}
        words = [f"{word} {bound:,.10g}" for word, bound in bounds.items() if abs(bound) < _LARGEST]
        return " and ".join(words) or f"a finite number up to {_LARGEST:g}"


COUNT = Interval(minimum=1, maximum=2**31 - 1)
POSITIVE = Interval(above=0)
NOT_NEGATIVE = Interval(minimum=0)
SHARE = Interval(minimum=0, below=1)
SEED = Interval(minimum=0, maximum=2**32 - 1)  # seeds that NumPy accepts


def option(
    default: Any, help: str, interval: Interval | None = None, alias: str | None = None, **metadata: object
) -> Any:
    """A dataclass field that `RecipeParser` turns into an option.

    Args:
        default: Its default; `MISSING` if the option must be given.
        help: Its line in `--help`.
        interval: The numbers that it accepts.
        alias: Another name, such as "--from".
        metadata: For an option of a training, `decides`: "data" if the encoded pairs depend on its value, "weights" if
            only the trained weights do, "inputs" if it names or makes what is read, which records identify by its
            content; None if weights do not depend on it. For an option of a translation, "translations", or "samples"
            if only these depend on it. Where the paper has a value, `paper`: the value, or a tuple
            of those of several models.
    """
    metadata |= {"help": help, "is_shown": True} | ({} if interval is None else {"interval": interval})
    if alias is not None:
        metadata["aliases"] = [alias]
    if default is dataclasses.MISSING:
        return dataclasses.field(kw_only=True, metadata=metadata)  # so that it may follow options with defaults
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def decisive_names(kind: type, *decisions: Decision) -> list[str]:
    """Names of the options of a dataclass that decide one of these."""
    return [field.name for field in dataclasses.fields(kind) if field.metadata.get("decides") in decisions]


def decisive_values(instance: Any, *decisions: Decision) -> dict[str, Json]:
    """Names and values of the options of a dataclass that decide one of these, for a record."""
    return {name: as_json(getattr(instance, name)) for name in decisive_names(type(instance), *decisions)}


def as_json(value: object) -> Json:
    """The value of an option as a record has it; an enumeration's text."""
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value if isinstance(value, bool | int | float | None) else str(getattr(value, "value", value))


def check_values(instance: Any, kind: type | None = None) -> None:
    """Check numbers, also those in lists, against the intervals of a dataclass's fields; None always passes.

    Args:
        instance: Has the numbers.
        kind: The dataclass; by default the class of `instance`.

    Raises:
        ValueError: A number lies outside its interval. The message starts with the field's name.
    """
    for field in dataclasses.fields(kind or instance):
        value, interval = getattr(instance, field.name, None), field.metadata.get("interval")
        for number in value if isinstance(value, list) else [value]:
            if interval is not None and number is not None and number not in interval:
                raise ValueError(f"{field.name}: must be {interval}, is {number!r}")


def require_new_file(name: str, path: str | Path, overwrite: bool) -> None:
    """Raise a ValueError unless a file can be written: it is new or may be replaced, and its directory exists."""
    if Path(path).exists() and not overwrite:
        raise ValueError(f"{name}: {path} exists already; name another file, or replace it with --overwrite")
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"{name}: there is no directory {Path(path).parent}; make it")


def refuse_unused(instance: Any, unused: Mapping[str, str]) -> None:
    """Refuse options that would have no effect.

    Args:
        instance: A dataclass.
        unused: For the name of a field, what to do instead of setting it.

    Raises:
        ValueError: A field differs from its default. The message starts with the field's name.
    """
    for field in dataclasses.fields(instance):
        if field.name in unused and getattr(instance, field.name) not in (field.default, None):
            raise ValueError(f"{field.name}: has no effect here; {unused[field.name]}")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of the recipe's docstring, and shows defaults."""


class RecipeParser(HfArgumentParser):
    """`HfArgumentParser` that also reads `--config file.yaml`, and reports an error in one line."""

    def __init__(self, dataclass_types: Sequence[type], **kwargs: Any) -> None:
        recipe = re.sub(r"(?<=\S) {2,}", " ", sys.modules["__main__"].__doc__ or "")  # a line that was continued
        usage = "%(prog)s [--config FILE.yaml] [--option value ...]"  # argparse would list all options
        kwargs = {"description": recipe, "usage": usage, "formatter_class": _HelpFormatter, **kwargs}
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        text = "YAML file, or a name in recipes/configs; options override it."
        self.add_argument("--config", type=Path, help=text, is_shown=True)
        text = "Show also the options that transformers adds, and exit."
        self.add_argument("--help_all", action="help", help=text, is_shown=True)

    def add_argument(self, *names: Any, is_shown: bool = False, **kwargs: Any) -> argparse.Action:
        """Like `ArgumentParser.add_argument`, with the metadata of `option`; `--help` does not show other options."""
        if not (is_shown or "--help" in names or "--help_all" in sys.argv):
            kwargs["help"] = argparse.SUPPRESS
        for name in ("decides", "interval", "paper"):
            kwargs.pop(name, None)
        return super().add_argument(*names, **kwargs)

    def error(self, message: str) -> NoReturn:
        sys.exit(f"{self.prog}: {one_line(message)}")  # its usage of two hundred options would hide the line

    def parse(self, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
        """Fill the dataclasses from `--config` and from `argv`, by default the program's arguments.

        An error ends the program with status 1 and one line that names the file or option.
        """
        logging.disable_progress_bar()  # those of the libraries count files, and break into ours
        if "datasets" in sys.modules:  # which takes a second to import
            sys.modules["datasets"].disable_progress_bars()
        try:
            return self.parse_dict(vars(self.read(argv)), allow_extra_keys=True)
        except Exception as error:  # transformers and torch raise errors of any type for a wrong value
            self.error(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")

    def read(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """The options of `--config` and of `argv`, as they were given; an error ends the program as in `parse`."""
        argv = list(sys.argv[1:] if argv is None else argv)
        finder = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        finder.error = self.error  # type: ignore[method-assign]  # argparse's own prints the usage
        finder.add_argument("--config", type=Path)
        path = finder.parse_known_args(argv)[0].config
        try:
            options, unknown = self.parse_known_args([*([] if path is None else self._read_words(path)), *argv])
            if unknown:
                raise ValueError(f"there is no option {unknown[0]}")
            for name, value in vars(options).items():
                if "" in (value if isinstance(value, list) else [value]):
                    raise ValueError(f"{name}: is empty; give a value, or leave the option out")
            for kind in self.dataclass_types:
                check_values(options, kind)
        except (ValueError, OSError) as error:
            self.error(str(error))
        return options

    def _read_words(self, path: Path) -> list[str]:
        """A configuration file as words of a command line."""
        words = []
        for name, values in read_config(path).items():
            if f"--{name}" not in self._option_string_actions or name == "config":
                raise ValueError(f"{path}: there is no setting {name!r}")
            words += [f"--{name}={values[0]}"] if len(values) == 1 else [f"--{name}", *values]
        return words
