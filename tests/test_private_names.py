"""Private names of libraries: few, listed with a reason in CONTRIBUTING, and none in what goes to the Hub."""

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

from helpers import REPOSITORY


LIBRARIES = {"transformers", "accelerate", "datasets", "evaluate"}

# Names that a library's documentation tells authors of subclasses to define, or to read.
HOOKS = {
    *("_no_split_modules", "_tied_weights_keys", "_init_weights", "_supports_*", "_can_*"),  # PreTrainedModel
    "_attn_implementation",  # of a configuration, to choose among the attention functions
    *("_sanitize_parameters", "_forward", "_load_*"),  # Pipeline: "How to create a custom pipeline?"
    *("_info", "_compute"),  # evaluate.Metric: "Creating and sharing a new evaluation"
    "_replace",  # Python's named tuples
}
_HOOK = re.compile("|".join(name.replace("*", r"\w+") for name in HOOKS))

_DEFINITION = re.compile(r"^ *(?:def |self\.)?(_[a-z]\w*) *[:=(]", re.MULTILINE)


def is_private(name: object) -> bool:
    return isinstance(name, str) and bool(re.fullmatch(r"_[a-z]\w*", name)) and not _HOOK.fullmatch(name)


def defined_by(files: Iterable[Path]) -> set[str]:
    """Private functions, fields and attributes that some files of libraries define."""
    found = (_DEFINITION.findall(path.read_text(encoding="utf-8")) for path in files)
    return {name for names in found for name in names if is_private(name)}


def defined_in(tree: ast.AST) -> set[str]:
    """Private functions, fields and attributes that code of the package defines."""
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    stored = [ast.unparse(node) for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    return {*filter(is_private, [*functions, *(name.removeprefix("self.") for name in stored)])}


def used_in(tree: ast.AST) -> set[str]:
    """Private names of attributes that code reads, calls or assigns, also as a string, for `getattr`."""
    nodes = [getattr(node, "attr", getattr(node, "value", None)) for node in ast.walk(tree)]
    return {*filter(is_private, nodes)}


def overridden_in(path: Path, tree: ast.Module) -> set[str]:
    """Private names that classes of a file define, and the file of a library's class that they inherit from, too."""
    found: set[str] = set()
    for node in [node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]:
        module = importlib.import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))
        bases = [base for base in getattr(module, node.name).__mro__ if base.__module__.split(".")[0] in LIBRARIES]
        found |= defined_in(node) & defined_by({Path(inspect.getfile(base)) for base in bases})
    return found


def private_names() -> dict[str, set[str]]:
    """The files of the package and the recipes that override or use each private name of a library."""
    files = [path for folder in ("vaswani_transformer", "recipes") for path in REPOSITORY.glob(f"{folder}/**/*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    homes = [Path(str(importlib.util.find_spec(library).origin)).parent for library in LIBRARIES]
    theirs = defined_by(path for home in homes for path in home.rglob("*.py") if home / "models" not in path.parents)
    package = {path: tree for path, tree in trees.items() if path.relative_to(REPOSITORY).parts[0] != "recipes"}
    overridden = {name for path, tree in package.items() for name in overridden_in(path, tree)}
    ours = {name for tree in trees.values() for name in defined_in(tree)}
    names = (theirs - ours) | overridden
    found = {path.name: (used_in(tree) | defined_in(tree)) & names for path, tree in trees.items()}
    return {name: {file for file in found if name in found[file]} for name in set().union(*found.values())}


def test_private_names_of_libraries_are_listed_with_a_reason():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(_\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    listed = {name: {Path(file).name for file in re.findall("`(.+?)`", files)} for name, files, _ in rows}
    assert listed == private_names()
    assert len(listed) <= 10
    assert not [file for files in listed.values() for file in files if file.endswith("_vaswani.py")]
