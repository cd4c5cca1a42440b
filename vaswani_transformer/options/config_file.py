"""The file of `--config`: YAML whose scalars all remain text, to be converted as on the command line.

YAML 1.1 would turn `no`, the code of Norwegian, into false, and `1:30` into 90.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import TypeAlias

import yaml


# A wheel has the recipes inside the package, a checkout beside it.
_INSIDE, _BESIDE = (folder / "recipes" for folder in Path(__file__).parents[1:3])
RECIPES = _INSIDE if _INSIDE.is_dir() else _BESIDE

_NULLS = ("", "~", "null", "Null", "NULL")

Setting: TypeAlias = "str | list[object] | dict[str, object]"


class _Loader(yaml.BaseLoader):
    """Loads scalars as text and nulls as None. A name given twice is an error; PyYAML would take the last."""

    def construct_scalar(self, node: yaml.ScalarNode) -> object:  # type: ignore[override]  # no text alone
        return None if node.style is None and node.value in _NULLS else node.value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"line {line}: {name!r} is set already in line {lines[name]}")
            lines[name] = line
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> dict[str, Setting]:
    """Read the options of a configuration file.

    Args:
        path: The file; or, where there is none, the name of one in `recipes/configs/`.

    Returns:
        For each name that is not null what it is set to.

    Raises:
        ValueError: The file is not a YAML mapping, or has a name twice. The message names the file.
        OSError: It cannot be read.
    """
    ours = RECIPES / "configs" / f"{str(path).removesuffix('.yaml')}.yaml"
    is_ours = not path.is_file() and path.parent == Path() and ours.is_file()
    try:
        settings = yaml.load((ours if is_ours else path).read_text(encoding="utf-8"), Loader=_Loader)
        if not isinstance(settings, dict):
            raise ValueError("must hold lines of the form `name: value`")
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return {str(name): value for name, value in settings.items() if value is not None}
