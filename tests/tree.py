"""`make tree`: every file of the package and the recipes, with the first line of its docstring."""

import ast
from pathlib import Path


for root in ("vaswani_transformer", "recipes"):
    for path in sorted(Path(root).rglob("*.py"), key=lambda path: (path.parent, path.name != "__init__.py", path.name)):
        first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]
        name = f"{path.parent}/" if path.name == "__init__.py" else f"  {path.name}"
        print(f"{name:<33} {first}")
