"""The design, kept true: which module may import which, and where files lie."""

import ast
import functools
import graphlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers import REPOSITORY, run_python

import vaswani_transformer


PACKAGE = REPOSITORY / "vaswani_transformer"
TESTS = REPOSITORY / "tests"
MODULES = sorted(PACKAGE.rglob("*.py"))
HUB_FILES = sorted(PACKAGE.glob("model/*_vaswani.py"))
RECIPES = sorted((REPOSITORY / "recipes").rglob("*.py"))

# What a room of the package may import of the others.
ALLOWED = {
    "system": set(),
    "model": set(),
    "options": {"system"},
    "data": {"model", "options", "system"},
    "training": {"data", "options", "system"},
    "evaluation": {"data", "model", "system"},
    "convert": {"model"},
    "engines": {"convert", "evaluation", "model", "system"},
    "decoding": {"data", "engines", "model", "options", "system"},
    "runs": {"data", "decoding", "evaluation", "model", "options", "system", "training"},
    "parsing": {"data", "decoding", "evaluation", "model", "options", "runs", "system"},
    "experiments": {"model", "runs", "system", "training"},
    "visualization": {"model", "system"},
}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, also by a string, relative imports resolved."""
    package = ["vaswani_transformer", *path.relative_to(PACKAGE).parts[:-1]] if PACKAGE in path.parents else []
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            modules = [node.module] if node.module else [alias.name for alias in node.names]
            names.update(".".join([*base, module]) for module in modules)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names.add(ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else "by a variable")
    return names


def rooms_imported(path: Path) -> set[str]:
    rooms = {name.split(".")[1] for name in imports(path) if name.startswith("vaswani_transformer.")}
    return {room for room in rooms if (PACKAGE / room).is_dir()}


def test_imports_flow_one_way():
    for path in (path for path in MODULES if path.parent != PACKAGE):
        room = path.relative_to(PACKAGE).parts[0]
        assert rooms_imported(path) <= ALLOWED[room] | {room}, path


def test_only_public_names_are_imported_by_a_variable():
    assert [path.name for path in (*MODULES, *RECIPES) if "by a variable" in imports(path)] == ["__init__.py"]


def test_dir_shows_all_public_names_and_nothing_else():
    names = [name for name in dir(vaswani_transformer) if name != "__version__"]
    assert names == sorted(vaswani_transformer.__all__)
    assert not any(isinstance(getattr(vaswani_transformer, name), ModuleType) for name in names)
    chapters = "\n".join(path.read_text() for path in REPOSITORY.glob("**/*.md") if ".venv" not in path.parts)
    imported = re.findall(r"^from vaswani_transformer import (.+)$", chapters, re.MULTILINE)
    assert {name for line in imported for name in line.split(", ")} <= set(names)


@pytest.mark.system
def test_importing_the_package_loads_the_model_and_nothing_else():
    code = "import sys; import vaswani_transformer; print(*sys.modules)"
    loaded = {*run_python(["-c", code]).stdout.split()}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("vaswani_transformer.")}
    assert rooms == {"decoding", "engines", "model", "parsing", "registration", "system"}
    costly = {"datasets", "evaluate", "matplotlib", "pandas", "rich", "sacrebleu", "sacremoses", "tabulate"}
    assert not costly & loaded


def test_there_is_no_cycle():
    """Between rooms, in what they may import; between files of `model/`, in what they do import."""
    in_model = {path.stem: {name.rpartition(".")[2] for name in imports(path)} for path in HUB_FILES}
    for graph in (ALLOWED, in_model):
        graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", HUB_FILES, ids=lambda path: path.name)
def test_hub_files_need_no_more_than_the_hub_has(path):
    available = {"torch", "transformers", "tokenizers", "huggingface_hub", "vaswani_transformer"}
    # A try around the import says so.
    optional = {"parsing_vaswani": {"nltk"}, "languages_vaswani": {"langcodes"}, "sentences_vaswani": {"sentencex"}}
    available |= optional.get(path.stem, set()) | sys.stdlib_module_names
    assert {name.split(".")[0] for name in imports(path)} <= available
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            # Only `from .name import ...` is followed when the files are copied.
            assert node.level == 1
            assert node.module


def test_nothing_is_loaded_without_saying_whether_its_code_is_trusted():
    """Left out, transformers asks on standard input, which for a filter is the text to translate."""
    calls = 0
    for path in (*MODULES, *RECIPES):
        for node in ast.walk(tree(path)):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.endswith((".from_pretrained", ".from_config")) and not name.startswith("GenerationConfig."):
                calls += 1
                keywords = {keyword.arg for keyword in node.keywords}  # None where the caller's keywords are passed on
                assert keywords & {"trust_remote_code", None}, f"{path}:{node.lineno}"
    assert calls > 3


def test_what_tests_share_stands_in_helpers():
    for path in TESTS.glob("*.py"):
        assert not any(name.startswith(("test_", "conftest")) for name in imports(path)), path


def test_nobody_imports_recipes():
    recipes = sorted((REPOSITORY / "recipes").glob("*.py"))
    names = {"recipes", *(path.stem for path in recipes)}
    for path in (*MODULES, *recipes):
        assert not {name.split(".")[0] for name in imports(path)} & names, path


def test_a_release_has_one_version():
    files = {
        "setup.py": r'version="(.+)"',
        "vaswani_transformer/__init__.py": r'__version__ = "(.+)"',
        "CITATION.cff": r"^version: (.+)$",
        "CHANGELOG.md": r"^## (.+)$",
        "CONTRIBUTING.md": r"the tag `v(.+?)`",
    }
    texts = {name: (REPOSITORY / name).read_text(encoding="utf-8") for name in files}
    assert len({re.search(pattern, texts[name], re.M)[1] for name, pattern in files.items()}) == 1
