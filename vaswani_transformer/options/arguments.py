"""Options of the recipes, from a YAML file and the command line, checked before any work."""

import argparse
import dataclasses
import difflib
import json
import math
import re
import reprlib
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from transformers import HfArgumentParser

from ..io.console import hide_library_bars, one_line, printable
from ..io.files import Json, read_json
from .config_file import read_config


_LARGEST = 1e12
_LONGEST_TEXT, _LONGEST_NAME = 4000, 255  # limits of file systems for a path and a name


# What depends on an option of a training: see `option`.
Decision: TypeAlias = Literal["inputs", "data", "weights"]

_OFTEN_USED = "max_steps, num_train_epochs, save_steps, eval_steps, logging_steps, seed, report_to and push_to_hub"


@dataclass(frozen=True)
class Interval:
    """The numbers that an option accepts.

    Attributes:
        minimum: Smallest number accepted.
        maximum: Largest number accepted; no sensible option needs more than the default.
        above: Exclusive lower bound.
        below: Exclusive upper bound.
        whole: Whether a float must be a whole number.
        also: One more number accepted, outside the bounds, such as -1 for no limit.
    """

    minimum: float = -_LARGEST
    maximum: float = _LARGEST
    above: float = -math.inf
    below: float = math.inf
    whole: bool = False
    also: float | None = None

    def __contains__(self, number: float) -> bool:
        if number == self.also:
            return True
        is_within = self.minimum <= number <= self.maximum and self.above < number < self.below
        return is_within and (not self.whole or number == int(number))

    def __str__(self) -> str:
        bounds = {
            "at least": self.minimum,
            "at most": self.maximum,
            "above": self.above,
            "below": self.below,
        }
        words = [f"{word} {bound:,.10g}" for word, bound in bounds.items() if abs(bound) < _LARGEST]
        if self.whole:
            words.insert(0, "whole")
        text = " and ".join(words) or f"a finite number up to {_LARGEST:g}"
        return text if self.also is None else f"{text}, or {self.also:g}"


COUNT = Interval(minimum=1, maximum=2**31 - 1)
POSITIVE = Interval(above=0)
NOT_NEGATIVE = Interval(minimum=0)
SHARE = Interval(minimum=0, below=1)
SEED = Interval(minimum=0, maximum=2**32 - 1)  # seeds that NumPy accepts

# Options of transformers that take other numbers than counts and positive fractions. A field that declares its own
# interval has precedence.
_OF_TRANSFORMERS = {
    **dict.fromkeys(("dataloader_num_workers", "save_total_limit"), Interval(minimum=0, maximum=2**31 - 1)),
    **dict.fromkeys(
        ("learning_rate", "weight_decay", "max_grad_norm", "eval_delay", "neftune_noise_alpha"), NOT_NEGATIVE
    ),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), SHARE),
    **dict.fromkeys(("seed", "data_seed"), SEED),
    "max_steps": Interval(minimum=1, maximum=2**31 - 1, also=-1),
    "local_rank": Interval(minimum=-1, maximum=2**31 - 1),
    "length_penalty": Interval(minimum=-100, maximum=100),  # larger powers of lengths overflow
}


def option(
    default: Any,
    help: str,
    interval: Interval | None = None,
    alias: str | None = None,
    is_prose: bool | None = None,
    decides: Decision | Literal["unsaid"] | None = "unsaid",
) -> Any:
    """A dataclass field that `RecipeParser` turns into an option.

    Every option of a training says what it decides. Records of trainings and of prepared corpora are computed from that
    by `decisive_values`, and so is what must stay the same when one is continued. A record that lacks an option stands
    for its default, so that of a new option must be what was done before.

    Args:
        default: Its default; `MISSING` if the option must be given.
        help: Its line in `--help`.
        interval: The numbers that it accepts.
        alias: Another name, such as "--from".
        is_prose: Whether it is a text, and no name of a file or model, so that it may be longer.
        decides: "data" if the encoded pairs depend on its value, "weights" if only the trained weights do, "inputs" if
            it names or makes what is read, which records identify by its content; None if weights do not depend on it.
    """
    metadata = {"help": help, "interval": interval, "aliases": alias and [alias], "is_prose": is_prose}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    if decides != "unsaid":
        metadata["decides"] = decides
    if default is dataclasses.MISSING:
        return dataclasses.field(kw_only=True, metadata=metadata)  # so that it may follow options with defaults
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def decisive_options(kind: type, *decisions: Decision) -> dict[str, Json]:
    """Names and defaults of the options of a dataclass that decide one of these.

    Raises:
        TypeError: An option that is not of transformers does not say what it decides.
    """
    own, defaults = own_options(kind), dict[str, Json]()
    for field in dataclasses.fields(kind):
        if field.name in own and "decides" not in field.metadata:
            raise TypeError(f"{kind.__name__}.{field.name}: option(..., decides=...) must say what depends on it")
        if field.metadata.get("decides") in decisions:
            defaults[field.name] = as_json(field.default)
    return defaults


def decisive_values(instance: Any, *decisions: Decision) -> dict[str, Json]:
    """Names and values of the options of a dataclass that decide one of these, for a record."""
    return {name: as_json(getattr(instance, name)) for name in decisive_options(type(instance), *decisions)}


def as_json(value: object) -> Json:
    """The value of an option as a record has it: that of an enumeration by its text."""
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value if isinstance(value, bool | int | float | None) else str(getattr(value, "value", value))


def own_options(kind: type) -> set[str]:
    """Names of the options of a dataclass that this project declares, not transformers."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith("transformers.")]
    return {name for base in own for name in get_annotations(base)}


def check_values(instance: Any) -> None:
    """Check the numbers of a dataclass, also those in lists, against the intervals of its fields; None always passes.

    Raises:
        ValueError: A number lies outside its interval. The message starts with the field's name.
    """
    for field in dataclasses.fields(instance):
        value, interval = getattr(instance, field.name), field.metadata.get("interval")
        for number in value if isinstance(value, list) else [value]:
            if interval is not None and number is not None and number not in interval:
                raise ValueError(_refusal(field.name, interval, number))


def _refusal(name: str, interval: Interval, number: float) -> str:
    bound = f" and at most {_LARGEST:g}" if number > min(interval.maximum, interval.below) == _LARGEST else ""
    return f"{name}: must be {interval}{bound}, is {reprlib.repr(number)}"


def require_new_file(name: str, path: str | Path, overwrite: bool) -> None:
    """Raise a ValueError unless a file can be written: it is new or may be replaced, and its directory exists."""
    if Path(path).exists() and not overwrite:
        raise ValueError(f"{name}: {path} exists already; name another file, or replace it with --overwrite")
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{name}: {path} is not a file; name one")
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


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """One spelling of each option, and its default if there is one."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        kind = "N" if action.type in (int, float) else "TEXT"
        value = "" if action.nargs == 0 else f" {self._format_args(action, kind)}"
        return action.option_strings[0] + value

    def _get_help_string(self, action: argparse.Action) -> str:
        default = action.default
        has_default = default not in (None, argparse.SUPPRESS) and default is not dataclasses.MISSING
        return f"{action.help or ''}{' (default: %(default)s)' if has_default else ''}"


class _Help(argparse.Action):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **kwargs)

    def __call__(self, parser: Any, *_: object) -> None:
        print(parser.format_help(everything=self.dest == "help_all"), end="")
        parser.exit()


class RecipeParser(HfArgumentParser):
    """`HfArgumentParser` that also reads `--config file.yaml`, and reports an error in one line.

    Unless an `option` declares its interval, a whole number must be a count, and another number positive and finite.
    Strings must not be empty or hold control characters.
    """

    def __init__(self, dataclass_types: Sequence[type], **kwargs: Any) -> None:
        self._intervals: dict[str, Interval] = {}
        self._prose: set[str] = set()
        recipe = re.sub(r"(?<=\S) {2,}", " ", sys.modules["__main__"].__doc__ or "")  # a line that was continued
        formatter = partial(_HelpFormatter, max_help_position=32)
        kwargs = {"description": recipe, "formatter_class": formatter, **kwargs}
        super().__init__(dataclass_types, add_help=False, allow_abbrev=False, **kwargs)
        self.add_argument("--help", "-h", action=_Help, help="Show this, and exit.")
        self.add_argument("--help_all", action=_Help, help="Show also what transformers adds, and exit.")
        self.add_argument("--config", type=Path, help="YAML file, or a name in recipes/configs; options override it.")
        hints = {name: str(hint) for kind in dataclass_types for name, hint in typing.get_type_hints(kind).items()}
        self._mappings = {name for name, hint in hints.items() if "dict" in hint}
        self._named: dict[str, argparse.Action] = {}
        for action in self._actions:  # of a switch and its `--no_` form, the first converts values
            self._named.setdefault(action.dest, action)
        self._own_defaults = {name: action.default for name, action in self._named.items()}

    def add_argument(
        self,
        *names: Any,
        interval: Interval | None = None,
        is_prose: bool = False,
        decides: str | None = None,
        **kwargs: Any,
    ) -> argparse.Action:
        """Like `ArgumentParser.add_argument`, with the keywords of `option` too."""
        action = super().add_argument(*names, **kwargs)
        if is_prose:
            self._prose.add(action.dest)
        if interval is not None:
            self._intervals[action.dest] = interval
        return action

    def format_help(self, everything: bool = False) -> str:
        """The recipe's docstring, and the options: by dataclass those of this project, then those of transformers."""
        formatter = self._get_formatter()
        formatter.add_usage("%(prog)s [--config FILE.yaml] [--option value ...]", [], [])
        formatter.add_text(self.description)
        fields = {field.name for kind in self.dataclass_types for field in dataclasses.fields(kind)}
        sections = {"Options": {action.dest for action in self._actions} - fields}
        for kind in self.dataclass_types:
            title = (kind.__doc__ or kind.__name__).splitlines()[0].rstrip(".")
            sections[title] = own_options(kind)
        others = fields.difference(*sections.values())
        if others and everything:
            sections["Options of transformers' Trainer"] = others
        for title, names in sections.items():
            formatter.start_section(title)
            formatter.add_arguments(action for name, action in self._named.items() if name in names)
            formatter.end_section()
        if others and not everything:
            formatter.add_text(
                f"--help_all shows {len(others)} options of transformers' Trainer, such as {_OFTEN_USED}."
            )
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        line = one_line(message)
        if len(line) > _LONGEST_TEXT:  # argparse repeats a value of any length
            line = f"{line[:_LONGEST_TEXT]} ..."
        sys.exit(f"{self.prog}: {line}")  # without argparse's usage: two hundred options would hide the line

    def parse(self, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
        """Fill the dataclasses from `--config` and from `argv`, by default the program's arguments.

        An error ends the program with status 1 and one line that names the file or option. Errors are a file that is
        missing or not a mapping, a name that is unknown (the nearest one is suggested) or given twice, and a value of
        the wrong type or outside its interval.
        """
        argv = list(sys.argv[1:] if argv is None else argv)
        hide_library_bars()
        ahead = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        ahead.error = self.error  # type: ignore[method-assign]  # argparse's own prints the usage
        ahead.add_argument("--config", type=Path)
        if (path := ahead.parse_known_args(argv)[0].config) is not None:
            try:
                self.set_defaults(**self._read(path))
            except (ValueError, OSError) as error:
                self.error(str(error))
        namespace, unknown = self.parse_known_args(argv)
        if unknown:
            self.error(f"there is no option {unknown[0]}{self._nearest(unknown[0].lstrip('-'), '--')}")
        for name, value in vars(namespace).items():
            if value != self._own_defaults.get(name):
                self._check(name, value)
        try:
            return self.parse_args_into_dataclasses(argv, look_for_args_file=False)[:-1]
        except Exception as error:  # transformers and torch raise errors of any type for a wrong value
            self.error(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")

    def _check(self, name: str, value: object) -> None:
        if isinstance(value, list):
            for item in value:
                self._check(name, item)
        elif isinstance(value, str) and name in self._mappings:
            self._check_mapping(name, value)
        elif isinstance(value, str):
            self._check_text(name, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            usual = COUNT if isinstance(value, int) else POSITIVE
            interval = self._intervals.get(name) or _OF_TRANSFORMERS.get(name, usual)
            if value not in interval:
                self.error(_refusal(name, interval, value))

    def _check_text(self, name: str, text: str) -> None:
        if not text.strip():
            self.error(f"{name}: is empty; give a value, or leave the option out")
        if "\n" in text or printable(text) != text:
            self.error(f"{name}: {reprlib.repr(text)} has control characters, or is not UTF-8; give it without them")
        is_name_too_long = any(len(part.encode()) > _LONGEST_NAME for part in text.split("/"))
        if len(text) > _LONGEST_TEXT or (is_name_too_long and name not in self._prose):
            self.error(f"{name}: {reprlib.repr(text)} is too long")

    def _check_mapping(self, name: str, text: str) -> None:
        """Require a JSON object, or the name of a file with one; the dataclass reads it later."""
        try:
            json.loads(text) if text.startswith("{") else read_json(text)
        except (ValueError, OSError) as error:
            self.error(f"{name}: {reprlib.repr(text)} is neither a JSON object nor a file with one: {error}")

    def _read(self, path: Path) -> dict[str, object]:
        """The values of a YAML file, converted like command-line values.

        Raises:
            ValueError, OSError: As from `read_config`; or a name is unknown, or its value of the wrong type.
        """
        given: dict[str, object] = {}
        for name, setting in read_config(path).items():
            action = self._named.get(name) or self._option_string_actions.get(f"--{name}")
            if action is None or action.nargs == 0 or name == "config":  # without a value: help, and `--no_` forms
                raise ValueError(f"{path}: there is no setting {name!r}{self._nearest(name)}")
            if action.dest in given:
                raise ValueError(f"{path}: {name}: is {action.dest} by another name; keep one of the two")
            texts = setting if isinstance(setting, list) else [setting]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{path}: {name}: takes texts and numbers; put a JSON object in quotes")
            if isinstance(setting, list) and not (setting and action.nargs == "+"):
                raise ValueError(f"{path}: {name}: takes {'one value' if setting else 'at least one value'}")
            try:
                given[action.dest] = self._get_values(action, texts)
            except argparse.ArgumentError as error:
                raise ValueError(f"{path}: {error}") from None
            action.required = False
        return given

    def _nearest(self, name: str, prefix: str = "") -> str:
        names = [action.dest for action in self._actions]
        nearest = difflib.get_close_matches(name[:80].replace("-", "_"), names, n=1, cutoff=0.4)
        return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
