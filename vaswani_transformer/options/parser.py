"""The parser of the recipes: options from a YAML file and the command line, checked before any work."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import datasets
import yaml
from transformers import HfArgumentParser
from transformers.utils import logging

from ..__main__ import RECIPES
from ..system.faults import exit_on_error, joined_processes
from ..system.messages import one_line, program_name
from .arguments import check_values
from .decoding import DecodingArguments


Arguments = TypeVar("Arguments")

_NULLS = ("", "~", "null", "Null", "NULL")  # of YAML


class RecipeParser(HfArgumentParser):
    """`HfArgumentParser` that also reads `--config file.yaml`, and reports an error in one line.

    Args:
        dataclass_types: Their fields are the options; the attribute `option_group` of a class is their heading in
            `--help`. Options of other classes, and those with `is_first`, come before the headings.
        shown: Names of the options that `--help` shows; by default all that `option` made.
        kwargs: As for `ArgumentParser`.
    """

    def __init__(self, dataclass_types: Sequence[type], shown: Collection[str] | None = None, **kwargs: Any) -> None:
        self._shown = shown
        self._metadata = {field.name: field.metadata for kind in dataclass_types for field in fields(kind)}
        grouped = [base for kind in dataclass_types for base in reversed(kind.__mro__) if "option_group" in vars(base)]
        # A class that extends another keeps its options under the heading of the other.
        self._headings = {
            field.name: vars(base)["option_group"] for base in reversed(grouped) for field in fields(base)
        }
        self._groups: dict[str, argparse._ArgumentGroup] = {}  # by heading
        self._config_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        text = "YAML file, or a name in recipes/configs; options override it."
        self._config_parser.add_argument("--config", type=Path, help=text)
        defaults = {
            **_describe_recipe(),
            "usage": "%(prog)s [--config FILE.yaml] [--option value ...]",  # argparse would list all options
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }
        super().__init__(dataclass_types, parents=[self._config_parser], allow_abbrev=False, **(defaults | kwargs))
        text = "Show also the options that transformers adds, and exit."
        self.add_argument("--help_all", action="help", help=text)

    def add_argument(self, *names: str, **kwargs: Any) -> argparse.Action | None:
        """Like `ArgumentParser.add_argument`; of the fields, `--help` shows those that `option` made.

        Each option has one spelling. `HfArgumentParser` also adds `--num-beams` to `--num_beams`, and `--no_x` for
        `--x false`.
        """
        if kwargs.get("action") == "store_false":
            return None
        names = tuple(name for name in names if "-" not in name.lstrip("-"))
        field = names[0].lstrip("-")
        metadata = self._metadata.get(field, {"is_shown": True})
        is_shown = metadata.get("is_shown", False) and (self._shown is None or field in self._shown)
        if not is_shown and kwargs.get("action") != "help" and "--help_all" not in sys.argv:
            kwargs["help"] = argparse.SUPPRESS
        elif kwargs.get("help") and kwargs.get("default") not in (None, "", [], {}, argparse.SUPPRESS):
            kwargs["help"] += " (default: %(default)s)"
        heading = self._headings.get(field)
        if metadata.get("is_first") or heading is None:
            return super().add_argument(*names, **kwargs)
        if heading not in self._groups:
            self._groups[heading] = self.add_argument_group(heading)
        return self._groups[heading].add_argument(*names, **kwargs)

    def error(self, message: str) -> NoReturn:
        if os.environ.get("LOCAL_RANK", "0") != "0":  # the machine's first process prints it
            sys.exit(1)
        sys.exit(f"{self.prog}: {one_line(message)}")  # argparse's usage of two hundred options would hide it

    def parse(self, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
        """Fill the dataclasses from `--config` and from `argv`, by default the program's arguments.

        An error ends the program with status 1 and one line that names the file or option.
        """
        return self.fill(self.read(argv))

    def fill(self, options: argparse.Namespace) -> tuple[Any, ...]:
        """Fill the dataclasses with options that `read` has returned; an error ends the program as in `parse`."""
        logging.disable_progress_bar()  # it counts files, and disturbs ours
        datasets.disable_progress_bars()
        try:
            return self.parse_dict(vars(options), allow_extra_keys=True)
        except Exception as error:  # transformers and torch raise errors of any type
            self.error(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")

    def read(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """The options of `--config` and of `argv`, as given; an error ends the program as in `parse`."""
        argv = list(sys.argv[1:] if argv is None else argv)
        self._config_parser.error = self.error  # type: ignore[method-assign]  # argparse's own prints the usage
        path = self._config_parser.parse_known_args(argv)[0].config
        try:
            words = [*([] if path is None else self._read_words(path)), *argv]
            options, unknown = self.parse_known_args(words)
            if unknown:
                raise ValueError(f"there is no option {unknown[0]}{self._similar(unknown[0])}")
            for name, value in vars(options).items():
                if "" in (value if isinstance(value, list) else [value]):
                    raise ValueError(f"{name}: is empty; give a value, or leave the option out")
            for kind in self.dataclass_types:
                check_values(options, kind)
        except (ValueError, OSError) as error:
            self.error(one_line(error))
        return options

    def _similar(self, word: str) -> str:
        """The end of a message that names the option most like an unknown one; empty without any."""
        name, known = word.partition("=")[0], self._option_string_actions
        similar = [] if name in known else difflib.get_close_matches(name, known, 1)
        return f"; is it {similar[0]}?" if similar else ""

    def _read_words(self, path: Path) -> list[str]:
        """A configuration file as words of a command line."""
        words = []
        for name, values in _read_config(path).items():
            if f"--{name}" not in self._option_string_actions or name == "config":
                raise ValueError(f"{path}: there is no option {name!r}{self._similar(f'--{name}')}")
            words += [f"--{name}={values[0]}"] if len(values) == 1 else [f"--{name}", *values]
        return words


@contextmanager
def recipe_options(kind: type[Arguments], advice: str = "") -> Iterator[Arguments]:
    """Parse the options of a recipe, and report an error of the block in one line.

    `advice` is that of `exit_on_error`. Launched processes share the work of a recipe with `DecodingArguments`, as in
    `joined_processes`.
    """
    (args,) = RecipeParser((kind,)).parse()
    shares_work = isinstance(args, DecodingArguments)
    with joined_processes(args.timeout_minutes, advice) if shares_work else exit_on_error(advice):
        yield args


def _describe_recipe() -> dict[str, str]:
    """The name and the docstring of the running recipe, in the words of the command `vaswani` if it was called so."""
    file = Path(sys.argv[0]).name
    program = program_name()
    text = re.sub(r"(?<=\S) {2,}", " ", sys.modules["__main__"].__doc__ or "")  # a line that was continued
    if program != file:  # the user may not have the directory of the recipes
        text = text.replace(f"python recipes/{file}", program).replace("recipes/configs/", "")
        text = text.replace(f"recipes/{file}", program.replace("vaswani", "-m vaswani_transformer"))
    return {"prog": program, "description": text}


def _read_config(path: Path) -> dict[str, list[str]]:
    """Read the options of a configuration file: YAML whose scalars remain text, to be converted as on a command line.

    YAML 1.1 would turn `no`, the code of Norwegian, into false, and `1:30` into 90.

    Args:
        path: The file; or, if it does not exist, the name of a file in `recipes/configs/`.

    Returns:
        The values of each option, by its name. Null options are left out.

    Raises:
        ValueError: There is no such file; or it is not a YAML mapping of texts and lists of texts, or has a name twice.
        OSError: The file cannot be read.
    """
    packaged = {each.stem: each for each in sorted((RECIPES / "configs").glob("*.yaml"))}
    file = path if path.exists() and not path.is_dir() else packaged.get(str(path).removesuffix(".yaml"))
    if file is None:
        raise ValueError(f"config: there is no file {path}; the package has {', '.join(packaged)}")
    try:
        text = file.read_text(encoding="utf-8-sig")
        document = yaml.compose(text, Loader=yaml.BaseLoader)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: not YAML: {error}") from None
    if not isinstance(document, yaml.MappingNode):
        raise ValueError(f"{path}: must hold lines of the form `name: value`")
    values: dict[str, list[str]] = {}
    for key, node in document.value:
        line = f"{path}: line {key.start_mark.line + 1}: {key.value}"
        is_list = isinstance(node, yaml.SequenceNode)
        scalars = node.value if is_list else [node]
        if not scalars or not all(isinstance(each, yaml.ScalarNode) for each in (key, *scalars)):
            raise ValueError(f"{line}: takes texts and numbers; put a JSON object in quotes")
        if key.value in values:
            raise ValueError(f"{line}: is set twice")
        if is_list or node.style is not None or node.value not in _NULLS:
            values[key.value] = [each.value for each in scalars]
    return values
