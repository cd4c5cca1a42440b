"""The file of `--config`: YAML whose scalars all remain text.

YAML 1.1 would turn `no`, the code of Norwegian, into false, and `1:30` into 90.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml


# A wheel has the recipes inside the package, a checkout beside it.
_INSIDE, _BESIDE = (folder / "recipes" for folder in Path(__file__).parents[1:3])
RECIPES = _INSIDE if _INSIDE.is_dir() else _BESIDE

_LARGEST = 1 << 20  # bytes; a configuration has a few thousand
_DEEPEST = 20
_NULLS = ("", "~", "null", "Null", "NULL")

Setting = str | list[str] | dict[str, object] | None


def read_config(path: Path) -> dict[str, Setting]:
    """Read the options of a configuration file.

    Args:
        path: The file; or, where there is none, the name of one in `recipes/configs/`.

    Returns:
        For each name the text of a scalar, a list of texts, a mapping, or None for a null. Numbers, booleans and nulls
        inside a mapping have JSON's types.

    Raises:
        ValueError: The file is not a YAML mapping, has a name twice, or has nested aliases, tags or deep nesting. The
            message names the line.
        OSError: It cannot be read.
    """
    text = _read(path)
    try:
        _check_structure(text, path)
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path}: must hold lines of the form `name: value`")
    return {name: _setting(node, name, path) for name, node in _entries(root, path)}


def _read(path: Path) -> str:
    ours = RECIPES / "configs" / f"{str(path).removesuffix('.yaml')}.yaml"
    with open(ours if not path.exists() and path.parent == Path() and ours.is_file() else path, "rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{path}: is larger than any configuration file; is it another file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None


def _check_structure(text: str, path: Path) -> None:
    """Refuse nested aliases, which can grow exponentially, tags, and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        where = f"{path}, line {event.start_mark.line + 1}"
        is_root = depth == 0 and getattr(event, "anchor", None) is not None
        if is_root or (isinstance(event, yaml.AliasEvent) and depth > 1):
            raise ValueError(f"{where}: an alias may only replace the whole value of an option; repeat the value")
        if (tag := getattr(event, "tag", None)) is not None:
            raise ValueError(f"{where}: tags such as {tag} are not supported; leave it out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"{where}: nested more than {_DEEPEST} levels deep")


def _entries(node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node]]:
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{path}, line {line}: a name must be text")
        if key.value in lines:
            raise ValueError(f"{path}, line {line}: {key.value!r} is set already in line {lines[key.value]}")
        lines[key.value] = line
        yield key.value, value


def _setting(node: yaml.Node, name: str, path: Path) -> Setting:
    if isinstance(node, yaml.ScalarNode):
        return None if _is_null(node) else node.value
    if isinstance(node, yaml.MappingNode):
        return {key: _plain_value(value, path) for key, value in _entries(node, path)}
    for item in node.value:
        if not isinstance(item, yaml.ScalarNode) or _is_null(item):
            raise ValueError(f"{path}, line {item.start_mark.line + 1}: {name}: a list holds texts and numbers only")
    return [item.value for item in node.value]


def _is_null(node: yaml.ScalarNode) -> bool:
    return node.style is None and node.value in _NULLS


def _plain_value(node: yaml.Node, path: Path) -> object:
    """A value inside a mapping, with JSON's types."""
    if isinstance(node, yaml.MappingNode):
        return {key: _plain_value(value, path) for key, value in _entries(node, path)}
    if isinstance(node, yaml.SequenceNode):
        return [_plain_value(item, path) for item in node.value]
    if isinstance(node, yaml.ScalarNode) and node.style is None:
        with suppress(ValueError):
            return json.loads(node.value or "null")
    return node.value
