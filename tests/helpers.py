"""What several test files share: where the recipes are, how they are called, programs that are watched from outside."""

import importlib.util
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from torch.distributed import TCPStore
from zygote import ZYGOTE, Program, Zygote


_STORES: list[TCPStore] = []  # of groups, until the tests end
REPOSITORY = Path(__file__).resolve().parents[1]
# Languages, sizes and precision of a model that train_wmt.py trains in a few seconds.
TINY_MODEL = {
    "source_language": "en",
    "target_language": "de",
    "vocab_size": 320,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
    "precision": "float32",
}
TINY = {
    **TINY_MODEL,
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


def write_pairs(pairs: Sequence[tuple[str, str]], *files: Path) -> list[str]:
    """Write sentence pairs into two aligned files; their names."""
    for file, side in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{sentence}\n" for sentence in side), encoding="utf-8")
    return [str(file) for file in files]


def recipe_module(path: str) -> ModuleType:
    """A recipe, such as "benchmarks/decode.py", loaded afresh, under a name that no library has."""
    file = REPOSITORY / "recipes" / path
    spec = importlib.util.spec_from_file_location(f"{file.stem}_recipe", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their types
    with patch.object(sys, "path", [str(file.parent), *sys.path]):  # as of a program that Python is called with
        spec.loader.exec_module(module)
    return module


def call_recipe(path: str, *arguments: object) -> None:
    """Call a recipe's `main` in this process with this command line; errors of a user end in SystemExit."""
    module = recipe_module(path)
    with patch.object(sys, "argv", [module.__file__, *map(str, arguments)]):
        module.main()


def run_python(
    arguments: Sequence[str | Path],
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    stdin: str | None = None,
    timeout: float = 300,
    zygote: Zygote = ZYGOTE,
) -> subprocess.CompletedProcess:
    """Run `python *arguments` to its end; stdout and stderr are captured as text.

    A script or module runs in a fork of a process that has imported the libraries, in a fraction of the time. Code
    (`-c`), and a program whose environment changes what imports do, such as HF_HOME, runs in a fresh interpreter.

    Args:
        arguments: A script, or `-m` and a module, and its arguments.
        environment: All environment variables; by default those of the tests.
        folder: Working directory; by default that of the tests.
        stdin: Text for standard input; by default it is empty.
        timeout: Seconds until `subprocess.TimeoutExpired`.
        zygote: What scripts and modules are forked from.
    """
    with _start(arguments, environment, folder, zygote, stdin=subprocess.PIPE) as process:
        return _finish(process, stdin or "", timeout)


def start_python(
    arguments: Sequence[str | Path],
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    stdin: int | None = None,
) -> subprocess.Popen:
    """Start `python *arguments`, for a test that kills, stops or interrupts it; stdout and stderr are text pipes.

    It runs as in `run_python`. Its process id is its own and its parent is this process.
    """
    return _start(arguments, environment, folder, stdin=stdin)


def run_ranks(
    arguments: Sequence[str | Path],
    count: int,
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 300,
) -> list[subprocess.CompletedProcess]:
    """Run `python *arguments` as so many ranks of one group, whose store this process serves, as torchrun does.

    Returns:
        What each rank left, by rank. When one fails, nobody ends the others, as a launcher would.
    """
    ranks = start_ranks(arguments, count, environment=environment, folder=folder)
    with ThreadPoolExecutor(count) as pool:
        results = [pool.submit(_finish, rank, None, timeout) for rank in ranks]
    return [result.result() for result in results]


def start_ranks(
    arguments: Sequence[str | Path],
    count: int,
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    machines: Sequence[Path] = (),
) -> list[subprocess.Popen]:
    """Start what `run_ranks` runs, for a test that kills, stops or interrupts a rank.

    With `machines`, working directories, each rank is the only one of a machine of its own.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(count)}
    group["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    given, ranks = os.environ if environment is None else environment, []
    for rank in range(count):
        own = {**given, **group, "RANK": str(rank), "LOCAL_RANK": "0" if machines else str(rank)}
        ranks.append(_start(arguments, own, machines[rank] if machines else folder, stdin=subprocess.DEVNULL))
    return ranks


def training_command(settings: Mapping[str, object]) -> list[str]:
    """train_wmt.py with these options; a tuple has several values."""
    words = [str(REPOSITORY / "recipes" / "train_wmt.py")]
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def start_training(settings: Mapping[str, object], processes: int, folder: Path) -> list[subprocess.Popen]:
    """Start train_wmt.py with these options on one process, or as so many ranks."""
    words = training_command(settings)
    if processes == 1:
        return [start_python(words, folder=folder)]
    return start_ranks(words, processes, folder=folder)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def watched_tab(browser: Any, width: int, height: int, own: tuple[str, ...]) -> Iterator[Any]:
    """A tab of Chromium; at its end it must have complained of nothing, and asked only for what begins with `own`."""
    context = browser.new_context(viewport={"width": width, "height": height})
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    tab.on("request", lambda sent: None if sent.url.startswith(own) else complaints.append(sent.url))
    yield tab
    assert complaints == []
    context.close()


def _start(
    arguments: Sequence[str | Path],
    environment: dict[str, str] | None,
    folder: Path | None,
    zygote: Zygote = ZYGOTE,
    **streams: int,
) -> subprocess.Popen:
    words = [str(word) for word in arguments]
    options: dict[str, Any] = {"env": environment, "cwd": folder, "encoding": "utf-8", **streams}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if zygote.can_fork(words, environment):
        return Program(words, zygote, **options)
    return subprocess.Popen([sys.executable, *words], **options)


def _finish(process: subprocess.Popen, stdin: str | None, timeout: float) -> subprocess.CompletedProcess:
    """Wait for a process; it is killed when the time is over."""
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@contextmanager
def limit_of_files(size: int) -> Iterator[None]:
    """Let this process write no file larger than so many bytes, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Code:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)
