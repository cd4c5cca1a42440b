"""A process that has imported the libraries once, and forks one program after another.

Importing torch and transformers takes far longer than the programs that tests start. `Program` is a `subprocess.Popen`
that asks such a process for a fork instead. The fork becomes a child of the caller, with the process id, streams,
signals and exit status that a process started with exec would have.

Differences from a real process: the libraries are imported already, hashes are seeded as in the zygote,
`/proc/PID/cmdline` is the zygote's, and at its end no module is torn down, because that would copy every page that is
shared with the zygote. A program that is about these needs a fresh interpreter (see `Zygote.can_fork`).
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


LIBRARIES = (
    "accelerate.commands.launch",
    "ctranslate2",
    "evaluate",
    "matplotlib.pyplot",
    "rich.console",
    "sacrebleu",
    "tensorboard",
    "torch.distributed.nn",
    "torch.distributed.run",
    "torch.utils.tensorboard",
    "transformers.trainer_seq2seq",
    "transformers.models.auto.modeling_auto",
    "transformers.pipelines",
    "transformers.integrations",
)
PACKAGE = tuple(
    f"vaswani_transformer.{part}"
    for part in ("runs.training_run", "runs.search_scores", "runs.model_card", "runs.push", "runs.plots")
)
# Arrow's allocator has a thread of its own, which ends in a fork.
HARMLESS_THREADS = {"jemalloc_bg_thd"}
# Variables that nothing reads while it is imported, and which may therefore differ from the zygote's.
LATE_VARIABLES = {"MASTER_ADDR", "MASTER_PORT", "PYTEST_CURRENT_TEST", "TOKENIZERS_PARALLELISM", "COLUMNS", "_"}
LATE_VARIABLES |= {"KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}  # which libraries set themselves, at their first use
LATE_VARIABLES |= {"HF_TOKEN", "VASWANI_LAUNCHER"}
LATE_VARIABLES |= {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "NCCL_ASYNC_ERROR_HANDLING"}
LATE_VARIABLES |= {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"}
LATE_PREFIXES = ("ACCELERATE_", "TORCHELASTIC_", "TORCH_NCCL_")
# A test may have changed its own later.
ENVIRONMENT = dict(os.environ)
PR_SET_CHILD_SUBREAPER = 36


class Zygote:
    """The resident process, started when it is first needed, and ended with this process.

    Args:
        environment: Its environment variables.
        modules: What it imports.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = (*LIBRARIES, *PACKAGE)) -> None:
        self._environment = environment  # no copy: kill_trials.py adds to it before the start
        self._modules = modules
        self._process: subprocess.Popen | None = None

    def can_fork(self, arguments: Sequence[str], environment: Mapping[str, str] | None) -> bool:
        """Whether `python *arguments` may be a fork: not code (`-c`), and no variable differs that an import reads."""
        # With more threads than one, imports start some.
        if sys.platform != "linux" or self._environment.get("OMP_NUM_THREADS") != "1":
            return False
        if arguments[0].startswith("-") and arguments[0] != "-m":
            return False
        changed = {*(os.environ if environment is None else environment).items()} ^ {*self._environment.items()}
        return all(name in LATE_VARIABLES or name.startswith(LATE_PREFIXES) for name, _ in changed)

    def fork(
        self, arguments: list[str], environment: dict[str, str], folder: str, group: int, streams: Sequence[int]
    ) -> int:
        """Process id of a child of this process that runs `python *arguments`.

        Args:
            arguments: A script, or `-m` and a module, and its arguments.
            environment: All environment variables.
            folder: Working directory.
            group: Process group; 0 for a session of its own.
            streams: Descriptors of its three standard streams.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(b"\0" + self._address().encode())
            # A process whose parent has ended becomes a child of the nearest ancestor that asks for it.
            _adopt_orphans(True)
            try:
                socket.send_fds(connection, [b"-"], list(streams))
                connection.sendall(json.dumps([arguments, environment, folder, group]).encode())
                connection.shutdown(socket.SHUT_WR)
                reply = connection.makefile().read()  # its end: the parent has ended
            finally:
                _adopt_orphans(False)
        if not reply:
            raise RuntimeError("the zygote has ended; see its messages above")
        return int(reply)

    def _address(self) -> str:
        if self._process is None:
            self._name = f"zygote-{uuid.uuid4()}"  # no file: its path would be limited to 107 bytes
            command = [sys.executable, __file__, self._name, *self._modules]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe)
            atexit.register(self.close)
            if self._process.stdout.readline() != b"ready\n":
                raise RuntimeError("the zygote has not started; see its messages above")
        return self._name

    def close(self) -> None:
        """End the process, if it has been started."""
        if self._process is None:
            return
        atexit.unregister(self.close)
        # Not by the end of its standard input: forks of this process, such as data workers, hold the pipe open.
        self._process.terminate()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None


ZYGOTE = Zygote(ENVIRONMENT)


class Program(subprocess.Popen):
    """`subprocess.Popen(["python", *arguments])`, but forked from a zygote.

    Args:
        arguments: A script, or `-m` and a module, and its arguments.
        zygote: What it is forked from.
        options: Those of `subprocess.Popen` for streams, text, `env` and `cwd`.
    """

    def __init__(self, arguments: Sequence[str], zygote: Zygote = ZYGOTE, **options: Any) -> None:
        self._arguments = list(arguments)
        self._zygote = zygote
        super().__init__([sys.executable, *arguments], **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest: Any) -> None:
        # All that `Popen` does to start a process; the pipes' ends are -1 where a stream is inherited.
        pipes, new_session = rest[3:9], rest[14]
        streams = [end if end != -1 else number for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        environment = dict(os.environ if env is None else env)
        folder = os.path.abspath(os.getcwd() if cwd is None else cwd)
        group = 0 if new_session else os.getpgid(0)
        try:
            self.pid = self._zygote.fork(self._arguments, environment, folder, group, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)


def hasten() -> None:
    """Leave out of this process what takes time and tests nothing; call it when all has been imported.

    Files are not written through to the disk, and measuring is shortened. What is made at its first use is made now,
    once for all forks. What has been imported is no garbage, so it is not searched for any, which trainers ask for at
    their ends; and its pages stay shared by forks.
    """
    os.fsync = os.fstat  # no test cuts the power; a wrong descriptor is an error still
    if costs := sys.modules.get("vaswani_transformer.runs.costs"):
        costs.MEASURED_SECONDS = 0.01
    if corpus := sys.modules.get("vaswani_transformer.data.phrasebook.corpus"):
        corpus.phrasebook("train")
    if mapping := sys.modules.get("transformers.conversion_mapping"):
        mapping.get_checkpoint_conversion_mapping("vaswani")
    gc.collect()
    gc.freeze()


def _adopt_orphans(adopt: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


# The zygote's side.


def _preload(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    tasks = Path("/proc/self/task")
    threads = {Path(task, "comm").read_text().strip() for task in tasks.iterdir() if task.name != str(os.getpid())}
    if not threads <= HARMLESS_THREADS:
        raise RuntimeError(f"an import has started threads, so that forks are unsafe: {sorted(threads)}")


def _serve(name: str) -> list[str] | None:
    """Answer requests; returns in each fork, with the arguments of its program, and in the zygote at its end."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(b"\0" + name.encode())
    listener.listen()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:  # the tests have ended
            return None
        connection, _ = listener.accept()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        arguments, environment, folder, group = json.loads(connection.makefile().read())
        parent = os.fork()
        if not parent:
            between = os.getpid()
            child = os.fork()
            if child:
                connection.sendall(str(child).encode())
                os._exit(0)
            while os.getppid() == between:  # whose death is not that of a launcher
                time.sleep(0.001)
            connection.close()
            listener.close()
            _attach(environment, folder, group, streams)
            return arguments
        os.waitpid(parent, 0)
        connection.close()
        for stream in streams:
            os.close(stream)


def _attach(environment: Mapping[str, str], folder: str, group: int, streams: Sequence[int]) -> None:
    """Take the environment, folder, process group and streams that a request names."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        if stream > 2:
            os.close(stream)
    os.setpgid(0, group) if group else os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(arguments: Sequence[str]) -> None:
    """What the interpreter does with its arguments."""
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


_ended: list[int] = []  # the exit status of a fork that was not interrupted


def _end() -> None:
    """End a fork after its other exit handlers, before its modules are torn down."""
    with suppress(OSError, ValueError):  # which the interpreter reports
        sys.stdout.flush()
        sys.stderr.flush()
        if _ended:
            os._exit(_ended[0] & 0xFF)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed at a terminal, it is for the tests
    atexit.register(_end)  # before all others, since the last one registered is called first
    _preload(sys.argv[2:])
    hasten()
    if (program := _serve(sys.argv[1])) is not None:
        try:
            _run(program)
            _ended.append(0)
        except SystemExit as stop:
            _ended.append(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
            raise
        except Exception:
            _ended.append(1)
            raise
