"""The console script `vaswani`, outside of the package: importing that loads torch, which `--help` does not need."""

import runpy
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run `vaswani_transformer/__main__.py`."""
    package = find_spec("vaswani_transformer")
    runpy.run_path(str(Path(package.origin).with_name("__main__.py")), run_name="__main__")
