"""The folder of a Space: the page, this package, the model if it is a directory, requirements, metadata."""

import json
import shutil
from collections.abc import Iterable, Sequence
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from ...io.files import MANIFEST_NAME, MODEL_FILES, atomic_directory


GRADIO = "6.31.0"  # as in constraints.txt
_PACKAGE = Path(__file__).parents[2]
_SUFFIXES = (".py", ".jinja", ".css", ".js", ".typed")  # of the package's files

_APP = '''"""The page of this Space: {recipe} with the options of the Space."""

import sys

from {module} import main


if __name__ == "__main__":
    sys.argv[1:] = {arguments}
    main()
'''

_README = """---
title: {title}
emoji: 🌐
colorFrom: blue
colorTo: indigo
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
license: apache-2.0
short_description: A Transformer of the paper, its search and attention
{models}---

Translate a sentence or a file, and see the beam search and the attention of the model. It was written by the recipe
`{recipe}` of vaswani_transformer. To change its limits, change the options in `app.py`.
"""


def write_space(folder: str | Path, recipe: Path, model: str, options: Sequence[str] = ()) -> None:
    """Write the folder of a Space that shows a model.

    Args:
        folder: The folder to make.
        recipe: The recipe that serves the page; it is copied.
        model: Directory of a saved model, which is copied; or its name on the Hub.
        options: Further options of the recipe.

    Raises:
        FileExistsError: The folder exists.
        ValueError: The model has no weights, or they are a link.
    """
    is_directory = Path(model).is_dir()
    name = f"models/{Path(model).resolve().name}" if is_directory else model  # the page shows the last part
    arguments = ["--model", name, "--host", "0.0.0.0", "--port", "7860", *options]
    with atomic_directory(folder, option="push_to_space") as staged:
        _copy(_PACKAGE, staged / _PACKAGE.name, [f"**/*{suffix}" for suffix in _SUFFIXES])
        _copy(recipe.parent, staged, [recipe.name])
        if is_directory:
            _copy(Path(model), staged / name, [*MODEL_FILES, MANIFEST_NAME, "generation_config.json", "README.md"])
            if not any((staged / name).glob("*.safetensors")):
                raise ValueError(f"push_to_space: {model} has no weights that are files, not links; copy them there")
        texts = {
            "app.py": _APP.format(recipe=recipe.name, module=recipe.stem, arguments=repr(arguments)),
            "requirements.txt": "".join(f"{line}\n" for line in _requirements()),
            "README.md": _README.format(
                title=json.dumps(f"Translate with {Path(name).name}"[:60], ensure_ascii=False),
                gradio=GRADIO,
                recipe=recipe.name,
                models="" if is_directory else f"models:\n- {json.dumps(model)}\n",
            ),
        }
        for file, text in texts.items():
            (staged / file).write_text(text, encoding="utf-8")


def _copy(source: Path, copy: Path, patterns: Iterable[str]) -> None:
    """Copy the files that match, without links, which may lead to what nobody meant to publish."""
    for path in {path for pattern in patterns for path in source.glob(pattern)}:
        if path.is_file() and not path.is_symlink():
            target = copy / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _requirements() -> list[str]:
    """What the package and the page need; gradio comes with the Space."""
    found = [Requirement(line) for line in requires(_PACKAGE.name) or []]
    extra = {"extra": "convert"}  # for the tokenizers of converted models
    needed = [each for each in found if each.marker is None or each.marker.evaluate(extra)]
    return sorted({f"{each.name}{each.specifier}" for each in needed})
