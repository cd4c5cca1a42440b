"""`make tree`: every file of the package and the recipes, with the first line of its docstring."""

import ast
from pathlib import Path


def first_line(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]


for root in ("vaswani_transformer", "recipes"):
    for folder in sorted({path.parent for path in Path(root).rglob("*.py")}):
        init = folder / "__init__.py"
        print(f"{f'{folder}/':<33} {first_line(init)}" if init.exists() else f"{folder}/")
        for path in sorted(folder.glob("*.py")):
            if path != init:
                print(f"  {path.name:<31} {first_line(path)}")
