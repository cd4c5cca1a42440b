"""The folder of a Space: the page, this package, the model if it is a directory, requirements, metadata."""

import json
import shutil
from collections.abc import Sequence
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from ..files import atomic_directory


GRADIO = "6.31.0"  # as in constraints.txt
_PACKAGE = Path(__file__).parents[1]
_MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "vocab*", "merges.txt", "README.md")

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
    """
    is_directory = Path(model).is_dir()
    name = f"models/{Path(model).resolve().name}" if is_directory else model  # the page shows the last part
    arguments = ["--model", name, "--host", "0.0.0.0", "--port", "7860", *options]
    with atomic_directory(folder, option="push_to_space") as staged:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_PACKAGE, staged / _PACKAGE.name, ignore=ignored)
        shutil.copyfile(recipe, staged / recipe.name)
        if is_directory:
            _copy_model(Path(model), staged / name)
        texts = {
            "app.py": _APP.format(recipe=recipe.name, module=recipe.stem, arguments=json.dumps(arguments)),
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


def _copy_model(directory: Path, copy: Path) -> None:
    copy.mkdir(parents=True)
    for path in {path for pattern in _MODEL_FILES for path in directory.glob(pattern)}:
        if not path.name.startswith(("_", ".")) and path.is_file():
            shutil.copyfile(path, copy / path.name)


def _requirements() -> list[str]:
    """What the package needs; gradio comes with the Space."""
    found = [Requirement(line) for line in requires(_PACKAGE.name) or []]
    return sorted(str(each) for each in found if each.marker is None)
