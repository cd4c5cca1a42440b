"""Tests the package in other packages, each in an environment of its own: `make test-clients`.

    python tests/clients/run.py [NAME ...]

Each `client_NAME.py` runs with the model that `make demo` trains. The status is 1 if a client fails.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


HERE = Path(__file__).resolve().parent
ENVIRONMENTS = Path(sys.prefix) / "clients"

# Packages to install on top of the project's environment, in the versions that PIP_CONSTRAINT names.
CLIENTS = ("peft", "torchao")


def make_environment(name: str) -> Path:
    """Python of the client's environment, which has the packages of this environment beneath its own."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    beneath = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(packages, "project.pth").write_text(beneath, encoding="utf-8")
    subprocess.run([python, "-m", "pip", "install", "--quiet", name], check=True)
    return python


def passes(name: str) -> bool:
    """Whether the tests of `client_NAME.py` pass in the client's environment."""
    pytest = [make_environment(name), "-m", "pytest", "-p", "no:cacheprovider", HERE / f"client_{name}.py"]
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return subprocess.run(pytest, cwd=HERE.parents[1], env={**os.environ, **threads}).returncode == 0


if __name__ == "__main__":
    failed = [name for name in sys.argv[1:] or CLIENTS if not passes(name)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
