"""The command `vaswani`: `vaswani translate --model runs/demo` runs `recipes/translate.py` with these options.

On several processes: `accelerate launch -m vaswani_transformer translate --model runs/demo`, which imports torch even
for `--help`. This file is also run by its path, so it imports nothing from the package.
"""

import ast
import difflib
import runpy
import sys
from importlib.metadata import version
from pathlib import Path


# A wheel has the recipes inside the package, a checkout next to it.
_INSIDE, _BESIDE = (folder / "recipes" for folder in Path(__file__).resolve().parents[:2])
RECIPES = _INSIDE if _INSIDE.is_dir() else _BESIDE

_SHORT = {
    "demo_app": "demo",
    "get_data": "data",
    "prepare_data": "prepare",
    "reproduce_table3": "table3",
    "train_wmt": "train",
    "visualize_attention": "visualize",
}


def main() -> None:
    commands, (name, *arguments) = recipes(), sys.argv[1:] or ["--help"]
    page = RECIPES / "reference" / f"{name}.md"
    if name in ("-h", "--help"):
        print("usage: vaswani COMMAND [OPTIONS]; `vaswani COMMAND --help` lists its options\n")
        for command, recipe in commands.items():
            print(f"  {command:<15}{_first_line(recipe)}")
        print(f"\nRecipes, configurations and files for `accelerate launch`: {RECIPES}")
    elif name == "--version":
        print(f"vaswani_transformer {version('vaswani_transformer')}")
    elif name not in commands:
        similar = difflib.get_close_matches(name, commands, 1)
        advice = f"is it {similar[0]}?" if similar else f"give one of {', '.join(commands)}"
        sys.exit(f"vaswani: there is no command {name!r}; {advice}")
    elif {"-h", "--help"} & {*arguments} and page.exists():  # the recipe would import its libraries first
        print(page.read_text(encoding="utf-8").split("```")[1].removeprefix("text\n"), end="")
    else:
        sys.argv = [str(commands[name]), *arguments]
        runpy.run_path(sys.argv[0], {"COMMAND": f"vaswani {name}"}, run_name="__main__")


def recipes() -> dict[str, Path]:
    """The recipe of each command."""
    return {_SHORT.get(path.stem, path.stem): path for path in sorted(RECIPES.glob("*.py"))}


def _first_line(recipe: Path) -> str:
    return ast.get_docstring(ast.parse(recipe.read_text(encoding="utf-8"))).splitlines()[0]


if __name__ == "__main__":
    main()
