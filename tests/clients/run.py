"""Tries the package in other packages, each in an environment of its own: `make test-clients`.

    python tests/clients/run.py [NAME ...]

Writes a table of what works and what is refused, with evidence, to README.md beside this file; rows of clients that
are not named are kept from the last run (results.json). The status is 1 if anything fails.
"""

import json
import os
import subprocess
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree


HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ENVIRONMENTS = Path(sys.prefix) / "clients"
SECONDS_TO_INSTALL, SECONDS_TO_TEST = 600, 1200

# Of each client, in `client_NAME.py`: the distribution whose version is shown, and what is installed on top of the
# project's environment, in the versions of the file that PIP_CONSTRAINT names, which `make` sets.
CLIENTS: dict[str, tuple[str, list[str]]] = {
    "peft": ("peft", ["peft"]),
    "trainer": ("transformers", []),
    "evaluate": ("evaluate", ["scipy"]),
    "tensorboard": ("tensorboard", []),
    "mlflow": ("mlflow-skinny", ["mlflow-skinny", "sqlalchemy", "alembic"]),
    "trackio": ("trackio", ["trackio"]),
    "torchao": ("torchao", ["torchao"]),
    "bitsandbytes": ("bitsandbytes", ["bitsandbytes"]),
    "offload": ("accelerate", []),
    "export": ("torch", []),
    "onnxruntime": ("onnxruntime", []),
    "lightning": ("lightning", ["lightning"]),
    "gradio": ("gradio", []),
    "ray": ("ray", ["ray[data]"]),
    "datatrove": ("datatrove", ["datatrove[io]"]),
}

PAGE = """# The package in other packages

Written by `make test-clients`, which runs each `client_NAME.py` in an environment of its own, beneath `.venv/clients`,
with the model that `make demo` trains. `make test-clients CLIENTS="peft torchao"` runs some. A client *works* if it
gives the same results as our own model and search; the last column shows how this was compared. *Refused* means that
the call raises the error in the last column.

"""


@dataclass(frozen=True)
class Row:
    """What was tried with a client, and what came of it."""

    client: str
    version: str
    date: str
    tried: str
    result: str  # "works", "refused", "not run" or "fails"
    evidence: str


def environment(name: str, requirements: list[str]) -> Path:
    """Python of the client's environment, which has the packages of this one beneath its own.

    Raises:
        subprocess.SubprocessError: Creating it failed, or took too long.
    """
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    beneath = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(packages, "project.pth").write_text(beneath, encoding="utf-8")
    if requirements:
        pip = [python, "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(pip, check=True, timeout=SECONDS_TO_INSTALL)
    return python


def row_of(case: ElementTree.Element, name: str, version: str) -> Row:
    """The row of one test, from pytest's JUnit report."""
    said = [(item.get("name"), item.get("value", "")) for item in case.iter("property")]
    told = {kind: [value for said_of, value in said if said_of == kind] for kind in ("tried", "evidence", "refused")}
    failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
    skipped, test = case.find("skipped"), case.get("name", "")
    tried = (told["tried"] or [test])[0]
    if "[" in test:
        tried = f"{test[test.index('[') + 1 : -1]}: {tried}"
    if failure is not None:
        result, evidence = "fails", failure.get("message", "").split("\n")[0]
    elif skipped is not None:
        result, evidence = "not run", skipped.get("message", "")
    elif told["refused"]:
        result, evidence = "refused", told["refused"][0]
    else:
        result, evidence = "works", ", ".join(told["evidence"])
    return Row(name, version, time.strftime("%Y-%m-%d"), tried, result, evidence)


def try_client(name: str) -> list[Row]:
    """Run `client_NAME.py` in the client's environment."""
    distribution, requirements = CLIENTS[name]
    report = ENVIRONMENTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    try:
        python = environment(name, requirements)
        ask = f"from importlib.metadata import version; print(version({distribution!r}))"
        version = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q", f"--junitxml={report}"]
        # The tests measure no speed, and threads of PyTorch wait for each other on busy machines.
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        file = HERE / f"client_{name}.py"
        subprocess.run([*pytest, file], cwd=REPOSITORY, env={**os.environ, **threads}, timeout=SECONDS_TO_TEST)
        cases = [*ElementTree.parse(report).getroot().iter("testcase")]
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError) as error:
        today = time.strftime("%Y-%m-%d")
        return [Row(name, ", ".join(requirements), today, "installing and starting it", "fails", str(error))]
    return [row_of(case, name, f"{distribution} {version}") for case in cases]


def write_page(rows: list[Row]) -> None:
    """The table as Markdown, for readers of the repository."""

    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

    lines = ["| client | date | tried | result | evidence or message |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (row.version, row.date, row.tried, row.result, row.evidence)
        lines.append(f"| {' | '.join(map(cell, cells))} |")
    table = "\n".join(lines) + "\n"
    (HERE / "README.md").write_text(PAGE + table, encoding="utf-8")
    print(table)


def main(names: list[str]) -> int:
    unknown = set(names) - CLIENTS.keys()
    if unknown:
        sys.exit(f"no client is called {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    results = HERE / "results.json"
    before = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    found = {name: [Row(**row) for row in rows] for name, rows in before.items()}
    for name in names or CLIENTS:
        found[name] = try_client(name)
    ordered = {name: found[name] for name in CLIENTS if name in found}
    results.write_text(
        json.dumps({name: [asdict(row) for row in rows] for name, rows in ordered.items()}, indent=1) + "\n",
        encoding="utf-8",
    )
    write_page([row for rows in ordered.values() for row in rows])
    return int(any(row.result == "fails" for name in names or CLIENTS for row in found[name]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
