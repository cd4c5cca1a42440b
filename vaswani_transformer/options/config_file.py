"""The file of `--config`: YAML whose scalars all remain text, and are converted as on the command line.

YAML 1.1 would turn `no`, the code of Norwegian, into false, and `1:30` into 90.
"""

from pathlib import Path

import yaml


# A wheel has the recipes inside the package, a checkout next to it.
_INSIDE, _BESIDE = (folder / "recipes" for folder in Path(__file__).parents[1:3])
RECIPES = _INSIDE if _INSIDE.is_dir() else _BESIDE

_NULLS = ("", "~", "null", "Null", "NULL")


def read_config(path: Path) -> dict[str, list[str]]:
    """Read the options of a configuration file.

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
