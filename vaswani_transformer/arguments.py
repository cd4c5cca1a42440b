"""Settings of a recipe: a YAML file, and the command line on top of it."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser


class RecipeParser(HfArgumentParser):
    """`HfArgumentParser` that also reads `--config file.yaml`, and ends with one line when something is wrong."""

    def __init__(self, dataclass_types: Sequence[type], **kwargs: Any) -> None:
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self.add_argument("--config", type=Path, help="YAML file of settings; the command line takes precedence.")

    def error(self, message: str) -> NoReturn:
        sys.exit(f"{self.prog}: {message}")  # the usage of some two hundred options would bury it

    def parse(self, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
        """Fill the dataclasses from `--config` and from `argv`, by default the program's arguments.

        Exits with status 1 and one line that names the file or option if the file is missing or no mapping, a name is
        unknown (the nearest one is suggested), or a value has the wrong type.
        """
        argv = list(sys.argv[1:] if argv is None else argv)
        ahead = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        ahead.add_argument("--config", type=Path)
        if (path := ahead.parse_known_args(argv)[0].config) is not None:
            self.set_defaults(**self._read(path))
        _, unknown = self.parse_known_args(argv)
        if unknown:
            self.error(f"there is no option {unknown[0]}{self._nearest(unknown[0].lstrip('-'), '--')}")
        try:
            return self.parse_args_into_dataclasses(argv, look_for_args_file=False)[:-1]
        except ValueError as error:
            self.error(str(error))

    def _read(self, path: Path) -> dict[str, Any]:
        """The settings of a YAML file, scalars as text, so that they are checked as if from the command line."""
        try:
            settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            self.error(f"{path}: {error.strerror}")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            self.error(f"{path}: not YAML: {' '.join(str(error).split())}")
        if not isinstance(settings, dict):
            self.error(f"{path}: must hold lines of the form `name: value`")
        actions = {action.dest: action for action in self._actions}
        given: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in actions or name in ("config", "help"):
                self.error(f"{path}: there is no setting {name!r}{self._nearest(str(name))}")
            if isinstance(value, (list, dict)):
                given[name] = value
            elif value is not None:
                action = actions[name]
                given[name] = [self._get_value(action, str(value))] if action.nargs == "+" else str(value)
        return given

    def _nearest(self, name: str, prefix: str = "") -> str:
        names = [action.dest for action in self._actions]
        nearest = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.4)
        return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
