"""Starting the other processes of a training on the CPU, and ending processes together."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch.distributed import TCPStore

from .messages import program_name, vaswani_command
from .processor import available_cores


LAUNCHERS = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")  # environment variables of torchrun and accelerate
# Processes that are started; each has a copy of the weights and of the optimizer's state. More cores are threads.
_MOST_PROCESSES = 8
_PR_SET_PDEATHSIG = 1  # from sys/prctl.h
_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None  # a forked process must not load it

_stores: list[TCPStore] = []  # serve the started processes until this one ends
_started: list[subprocess.Popen] = []


def start_processes(options: Namespace) -> None:
    """Make this training process the first of several on the CPU, and start the others.

    Several processes train small models faster than the threads of one. Call it before joining the process group. The
    others run the same command line, and end with this process; a signal to any of them reaches all at the end of a
    step. Nothing is started under a launcher, on a GPU, or, without `options.processes`, by a recipe that is called by
    its path.

    torchrun would be one more process. It kills the others 30 seconds after a signal, when a step of a large batch may
    not have ended, and prints its traceback after the line of an error.

    Args:
        options: `processes`, `virtual_ranks`, `use_cpu`, `source_tokens`, `target_tokens` and `max_length`.
    """
    is_launched = any(name in os.environ for name in (*LAUNCHERS, "WORLD_SIZE"))
    if is_launched or (torch.accelerator.is_available() and not options.use_cpu):
        return
    name, cores = program_name(), min(torch.get_num_threads(), available_cores())
    count = options.processes or _useful_processes(options, cores)
    if count == 1:
        return
    if options.processes is None and vaswani_command() is None:
        print(f"{name}: trains in one process on {cores} cores; --processes {count} may be faster", file=sys.stderr)
        return
    threads = max(1, cores // count)
    each = "a thread" if threads == 1 else f"{threads} threads"
    print(f"{name}: {count} processes of {each} divide every batch; --processes 1 starts no other", file=sys.stderr)
    torch.set_num_threads(threads)
    _stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    os.environ |= {  # where torch and accelerate look for the group, in this process too
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_stores[-1].port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # this process already serves the store
        "WORLD_SIZE": str(count),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": str(threads),
    }
    command = [sys.executable, *sys.orig_argv[1:]]
    # Set before the imports of a process, so that it does not wait for this one if this one ends meanwhile.
    end = partial(end_with_parent, signal.SIGKILL)
    for rank in map(str, range(1, count)):
        environment = {**os.environ, "RANK": rank, "LOCAL_RANK": rank}
        _started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=end))


def _useful_processes(options: Namespace, cores: int) -> int:
    """The most processes that train faster: each has a core, and a sentence of every batch."""
    # The batch of the longest sentences has the fewest. Without token budgets, the corpus decides.
    longest = [tokens // options.max_length for tokens in (options.source_tokens, options.target_tokens) if tokens]
    return max(1, min(cores, _MOST_PROCESSES, options.virtual_ranks or _MOST_PROCESSES, *longest))


@contextmanager
def needing_started_processes() -> Iterator[None]:
    """End this process if one that it has started ends within the context, such as before joining the group."""
    is_over = threading.Event()

    def watch(process: subprocess.Popen) -> None:
        process.wait()
        if not is_over.is_set():
            line = "a process that divides the batches ended before the training; --processes 1 trains in one process"
            print(f"{program_name()}: {line}", file=sys.stderr, flush=True)
            os._exit(1)

    for process in _started:
        threading.Thread(target=watch, args=[process], daemon=True).start()
    yield
    is_over.set()


def end_with_parent(signal_number: int) -> None:
    """Make Linux send this process a signal when the thread that started it ends."""
    if _LIBRARY is not None:
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


@cache
def end_forks_with_this_process() -> None:
    """Make Linux kill processes forked from now on when this process ends."""
    os.register_at_fork(after_in_child=lambda: end_with_parent(signal.SIGKILL))
