"""The command `vaswani`: from a wheel, from a checkout, and on several processes."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers import REPOSITORY, run_python, run_recipe

from vaswani_transformer import __version__


pytestmark = pytest.mark.system
RECIPES = sorted((REPOSITORY / "recipes").glob("*.py"))
COMMAND = "../vaswani_transformer/__main__.py"


def checked(*command: str | Path, folder: Path, **variables: str) -> str:
    """Standard output of a program that must succeed."""
    environment = {**os.environ, **variables}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of the checkout, built in a copy, where earlier builds have left nothing."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "vaswani_command.py"):
        shutil.copy(REPOSITORY / name, folder)
    for name in ("vaswani_transformer", "recipes"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    checked(sys.executable, "-m", "pip", "wheel", "--quiet", *offline, "--wheel-dir", "dist", ".", folder=folder)
    return next(folder.glob("dist/*.whl"))


def test_the_wheel_has_the_recipes_and_what_they_read(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    folders = [REPOSITORY / "recipes" / name for name in ("configs", "launch", "reference")]
    for path in (*RECIPES, *(file for folder in folders for file in folder.iterdir())):
        assert f"vaswani_transformer/{path.relative_to(REPOSITORY)}" in packed
    for path in (REPOSITORY / "vaswani_transformer").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md":
            assert str(path.relative_to(REPOSITORY)) in packed


def test_the_installed_command_runs_the_installed_recipes(wheel, tmp_path):
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    checked(*pip, "--target", installed, wheel, folder=tmp_path)
    vaswani = [sys.executable, installed / "bin" / "vaswani"]
    there = {"PYTHONPATH": str(installed)}
    (tmp_path / "torch.py").write_text("raise RuntimeError('help needs no torch')", encoding="utf-8")
    without_torch = {"PYTHONPATH": f"{tmp_path}:{installed}"}
    listed = checked(*vaswani, folder=installed, **without_torch)
    assert str(installed / "vaswani_transformer" / "recipes") in listed
    shown = checked(*vaswani, "translate", "--model", "runs/demo", "--help", folder=installed, **without_torch)
    assert shown.startswith("usage: vaswani translate")
    assert checked(*vaswani, "--version", folder=installed, **without_torch) == f"vaswani_transformer {__version__}\n"
    assert "--num_beams" in shown
    (tmp_path / "torch.py").unlink()
    model = ["--model", REPOSITORY / "model_cards" / "tatoeba-de-en", "--target_language", "en"]
    checked(*vaswani, "visualize", *model, "--source", "Ja.", "--output", "a.svg", folder=tmp_path, **there)
    assert (tmp_path / "a.svg").is_file()


def test_pip_commands_name_packages_and_extras_that_exist():
    """No index has this package: an extra is one of the checkout, and other names are dependencies."""
    setup = (REPOSITORY / "setup.py").read_text(encoding="utf-8")
    extras = set(re.findall(r'^ +"(\w+)": ', setup, re.M))
    packages = set(re.findall(r'"(\w+)>=', setup))
    rooms = [REPOSITORY / name for name in ("vaswani_transformer", "recipes", "model_cards")]
    files = [path for room in rooms for path in room.rglob("*") if path.suffix in (".py", ".jinja", ".md")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*files, REPOSITORY / "README.md"])
    commands = re.findall(r"pip install ([^`{\n]+)`", text)
    assert len(commands) > 10
    for command in commands:
        extra = re.fullmatch(r'-e "\.\[(\w+)\]"', command)
        assert extra[1] in extras if extra else command == "." or set(command.split()) <= packages, command


def test_commands_are_listed_with_the_first_lines_of_their_docstrings():
    listed = run_recipe(COMMAND, "--help")
    for recipe in RECIPES:
        first = ast.get_docstring(ast.parse(recipe.read_text(encoding="utf-8"))).splitlines()[0]
        line = next(line for line in listed.stdout.splitlines() if line.endswith(first))
        assert recipe.stem.startswith(line.split()[0]) or line.split()[0] in ("data", "table3")


def test_a_command_is_its_recipe(tmp_path, saved_model):
    """The options, the status and the errors of the recipe; a configuration of the package by its name."""
    (tmp_path / "text").write_text("The old man reads a book.\n", encoding="utf-8")
    options = ["--model", saved_model, "--input", "text"]
    ours = run_recipe(COMMAND, "translate", *options, folder=tmp_path)
    assert ours.stdout == run_recipe("translate.py", *options, folder=tmp_path).stdout
    refused = run_recipe(COMMAND, "train", "--config", "demo", "--virtual_ranks", "-1", folder=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("vaswani train: virtual_ranks: must be at least")
    failed = run_recipe(COMMAND, "average", "--run", tmp_path, "--last", 2, "--output", "out", folder=tmp_path)
    assert failed.stderr == f"vaswani average: run, last: {tmp_path} has 0 checkpoints; give at most as many\n"
    for name, advice in (("trian", "is it train?\n"), ("x", "give one of average, convert, ")):
        unknown = run_python(["-m", "vaswani_transformer", name], folder=tmp_path)
        assert unknown.returncode == 1
        assert unknown.stderr.startswith(f"vaswani: there is no command {name!r}; {advice}")
