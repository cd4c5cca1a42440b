"""Helpers of several test files: call recipes, start processes, write small files."""

import contextlib
import importlib.util
import io
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from torch.distributed import TCPStore
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer.data.phrasebook import phrasebook


REPOSITORY = Path(__file__).resolve().parents[1]
# The model whose weights are in the repository: German and English, both ways.
BOX = REPOSITORY / "model_cards" / "tatoeba-de-en"
TRAIN_WMT = REPOSITORY / "recipes" / "train_wmt.py"
# Options with which train_wmt.py trains in a few seconds.
TINY = {
    "source_language": "en",
    "target_language": "de",
    "vocab_size": 320,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
    "precision": "float32",
    "source_tokens": 400,
    "target_tokens": 400,
    "max_steps": 4,
    "warmup_steps": 2,
    "save_steps": 2,
    "average_last": 2,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "report_to": "none",
    "disable_tqdm": False,
}
_STORES: list[TCPStore] = []  # they serve the ranks until the tests end


def write_lines(file: Path, lines: Iterable[str]) -> Path:
    """Write lines into a text file; the file."""
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def write_pairs(pairs: Sequence[tuple[str, str]], *files: Path) -> list[str]:
    """Write sentence pairs into two aligned files; their names."""
    return [str(write_lines(file, side)) for file, side in zip(files, zip(*pairs, strict=True), strict=True)]


def write_splits(folder: Path, **sizes: int) -> dict[str, list[str]]:
    """Write the first pairs of the phrasebook's splits; the names of their files."""
    return {
        split: write_pairs(phrasebook(split)[:size], folder / f"{split}.en", folder / f"{split}.de")
        for split, size in sizes.items()
    }


def change_json(file: Path, **values: Any) -> None:
    """Set fields of a JSON file, which is made if there is none."""
    fields = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**fields, **values}), encoding="utf-8")


def save_model(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Save a model and its tokenizer in a directory, as training leaves them; the directory."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


# In this process.


def recipe_module(path: str) -> ModuleType:
    """A recipe, such as "benchmarks/decode.py", loaded afresh, under a name that no library has."""
    file = REPOSITORY / "recipes" / path
    spec = importlib.util.spec_from_file_location(f"{file.stem}_recipe", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their types
    with patch.object(sys, "path", [str(file.parent), *sys.path]):
        spec.loader.exec_module(module)
    return module


def call_recipe(recipe: str | ModuleType, *words: object) -> None:
    """Call a recipe's `main` with these options; a module may be patched. Errors of a user end in SystemExit."""
    module = recipe_module(recipe) if isinstance(recipe, str) else recipe
    with patch.object(sys, "argv", [module.__file__, *map(str, words)]):
        module.main()


def refusal(recipe: str | ModuleType, *words: object) -> str:
    """The one line with which a recipe refuses these options."""
    with pytest.raises(SystemExit) as stop:
        call_recipe(recipe, *words)
    message = str(stop.value.code)
    assert re.match(r"\w+\.py: ", message)
    assert len(message.splitlines()) == 1
    return message


def run_recipe(path: str, *arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess:
    """Call a recipe's `main` as a program that is run to its end in a folder; stdout and stderr are captured."""
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    status = 0
    with (
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        contextlib.chdir(folder or Path.cwd()),
    ):
        try:
            call_recipe(path, *arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if status == 1:
                print(end.code, file=stderr)
    texts = (stream.buffer.getvalue().decode("utf-8") for stream in (stdout, stderr))
    return subprocess.CompletedProcess([path, *arguments], status, *texts)


def call_in_threads(calls: Sequence[Callable[[], Any]], rounds: int, threads: int = 8) -> list[list[Any]]:
    """Make calls in several threads at once, and return the results of each call."""
    barrier = threading.Barrier(threads)
    found: list[list[Any]] = [[] for _ in calls]

    def work(first: int) -> None:
        barrier.wait()
        for number in range(first, first + rounds):
            index = number % len(calls)
            found[index].append(calls[index]())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a call
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    finally:
        sys.setswitchinterval(interval)
    return found


# In processes of their own, which take seconds to import the libraries.


def run_python(
    arguments: Sequence[str | Path],
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    stdin: str = "",
    timeout: float = 300,
) -> subprocess.CompletedProcess:
    """Run `python *arguments` to its end; stdout and stderr are captured as text."""
    process = start_python(arguments, environment=environment, folder=folder, stdin=subprocess.PIPE)
    return _finish(process, stdin, timeout)


def start_python(
    arguments: Sequence[str | Path],
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    stdin: int | None = None,
) -> subprocess.Popen:
    """Start `python *arguments`, for a test that kills, stops or interrupts it; stdout and stderr are text pipes."""
    streams = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, cwd=folder, encoding="utf-8", **streams
    )


def run_ranks(
    arguments: Sequence[str | Path],
    count: int,
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 300,
) -> list[subprocess.CompletedProcess]:
    """Run `python *arguments` as ranks of one group, whose store this process serves, as torchrun does.

    Returns:
        The result of each rank. When one fails, nobody ends the others, as a launcher would.
    """
    ranks = start_ranks(arguments, count, environment=environment, folder=folder)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: _finish(rank, None, timeout), ranks))


def start_ranks(
    arguments: Sequence[str | Path],
    count: int,
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    machines: Sequence[Path] = (),
) -> list[subprocess.Popen]:
    """Start what `run_ranks` runs, for a test that kills, stops or interrupts a rank.

    With `machines`, working directories, each rank is the only one of its machine.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(count)}
    group["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    ranks = []
    for rank in range(count):
        numbers = {"RANK": str(rank), "LOCAL_RANK": "0" if machines else str(rank)}
        variables = {**(os.environ if environment is None else environment), **group, **numbers}
        where = machines[rank] if machines else folder
        ranks.append(start_python(arguments, environment=variables, folder=where, stdin=subprocess.DEVNULL))
    return ranks


def option_words(settings: Mapping[str, object]) -> list[str]:
    """These options on a command line; a list or tuple has several values, and None is left out."""
    words = []
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list | tuple) else (value,))]
    return words


def _finish(process: subprocess.Popen, stdin: str | None, timeout: float) -> subprocess.CompletedProcess:
    """Wait for a process; it is killed when the time is over."""
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def watched_tab(browser: Any, width: int, height: int, allowed: tuple[str, ...]) -> Iterator[Any]:
    """A tab of Chromium. At its end it must have complained of nothing, and asked only for `allowed` addresses."""
    context = browser.new_context(viewport={"width": width, "height": height})
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    tab.on("request", lambda sent: None if sent.url.startswith(allowed) else complaints.append(sent.url))
    yield tab
    assert complaints == []
    context.close()


@contextlib.contextmanager
def limit_of_files(size: int) -> Iterator[None]:
    """Let this process write no larger file, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Terminal(io.StringIO):
    """Keeps what is shown."""

    def isatty(self) -> bool:
        return True


class Code:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)
