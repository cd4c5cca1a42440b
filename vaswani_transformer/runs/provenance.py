"""Provenance of results: command, commit, machine, versions, corpora and model; without paths and tokens."""

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from itertools import pairwise
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from ..data.prepared_directory import TrainingData
from ..system.messages import vaswani_command
from ..system.typed_json import from_json
from .records import Provenance, RunData, RunModel


def describe_run(repository: str | None = None) -> Provenance:
    """Describe this process: its command, the package's commit, the machine, library versions.

    `repository` is the repository on the Hub that the run pushes to.
    """
    words = [part for word in sys.argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    shown = ["..." if before == "--hub_token" else str(published(word)) for before, word in pairwise(["", *words])]
    command = vaswani_command()
    program = ["python", shown[0]] if command is None else command.split()
    names = ("vaswani_transformer", "transformers", "tokenizers", "sacrebleu", "sacremoses")
    versions = {"python": platform.python_version(), "torch": torch.__version__}  # also which build of torch
    return Provenance(
        command=shlex.join([*program, *shown[1:]]),
        commit=_commit(),
        date=date.today().isoformat(),
        hardware=_hardware(),
        versions=versions | {name: importlib.metadata.version(name) for name in names},
        repository=repository,
    )


def describe_data(options: Mapping[str, object], data: TrainingData) -> RunData:
    """Describe the corpora of a training, and their options."""
    options = {name: published(value) for name, value in options.items()}
    mixed = {
        name: {"corpus": options[name], "ratio": options[f"{name}_ratio"], "cleaning": data.cleaning[name]}
        for name in data.mixed
    }
    counts = {"cleaning": data.cleaning["train"], "mixed": mixed or None, "in_train": data.in_train or None}
    return from_json(RunData, {**options, **counts})


def describe_model(model: PreTrainedModel) -> RunModel:
    """Describe a model: its size and its configuration, without references to remote code."""
    remote = ("auto_map", "custom_pipelines")
    config = {name: published(value) for name, value in model.config.to_dict().items() if name not in remote}
    return from_json(RunModel, {"parameters": model.num_parameters(), **config})


def published(value: object) -> object:
    """The value of an option for publication; paths, also in lists, are shortened.

    Paths outside the working directory are reduced to their last part, because the rest reveals user and machine.
    """
    if isinstance(value, list):
        return [published(item) for item in value]
    if not isinstance(value, str):
        return value
    path = Path(os.path.expanduser(value))  # leaves "~50,000 pairs" as it is, where pathlib would raise
    if not path.is_absolute() and ".." not in path.parts:
        return value
    full, here = Path(os.path.abspath(path)), Path.cwd()
    return str(full.relative_to(here)) if full.is_relative_to(here) else full.name


def _commit() -> str:
    """The commit of the package's repository, with "-dirty" if files differ from it; or "unknown"."""
    repository = Path(__file__).resolve().parents[2]
    if not (repository / ".git").exists() or shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(repository), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def _hardware() -> str:
    """The GPUs, or the processor and threads."""
    state = PartialState()
    if state.device.type == "cuda":
        return f"{state.num_processes} x {torch.cuda.get_device_name(state.device)}"
    information, threads = Path("/proc/cpuinfo"), torch.get_num_threads()
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"
