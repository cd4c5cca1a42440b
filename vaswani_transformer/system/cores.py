"""Several processes on the cores of one CPU, which train small models faster than the threads of one process."""

import os
import signal
import subprocess
import sys
from argparse import Namespace
from functools import partial

import torch
from torch.distributed import TCPStore

from .console import program_name
from .processes import LAUNCHER, OTHER_LAUNCHERS, available_cores, end_with_parent


# Each has a copy of the weights and of the optimizer's state. More cores are threads of these processes.
MOST_PROCESSES = 8

_stores: list[TCPStore] = []  # serve the processes until this one ends


def start_processes(program: str, options: Namespace) -> None:
    """Make this training process the first of several on the CPU, and start the others.

    Call it before joining the process group. The others run the same command line, and end with this process; a signal
    to any of them reaches all at the end of a step. Under a launcher and on a GPU, nothing is started.

    torchrun would be one more process. It kills the others 30 seconds after a signal, when a step of a large batch may
    not have ended, and prints its traceback after the line of an error.

    Args:
        program: File name of the recipe. If called by its path, it starts others only for `processes`.
        options: `processes`, `virtual_ranks`, `use_cpu`, `source_tokens`, `target_tokens` and `max_length`.
    """
    # A sweep, which sets LAUNCHER, starts one process for each training.
    is_launched = any(name in os.environ for name in (*OTHER_LAUNCHERS, "WORLD_SIZE"))
    if is_launched or (torch.accelerator.is_available() and not options.use_cpu):
        return
    name, cores = program_name(program), min(torch.get_num_threads(), available_cores())
    # Each process needs a sentence of every batch; the batch of the longest sentences has the fewest. None: the corpus
    # decides.
    longest = [tokens // options.max_length for tokens in (options.source_tokens, options.target_tokens) if tokens]
    most = min(cores, MOST_PROCESSES, options.virtual_ranks or MOST_PROCESSES, *longest)
    count = options.processes or max(1, most)
    if count == 1:
        return
    if options.processes is None and name == program:
        print(f"{name}: trains in one process on {cores} cores; --processes {count} may be faster", file=sys.stderr)
        return
    threads = max(1, cores // count)
    each = "a thread" if threads == 1 else f"{threads} threads"
    print(f"{name}: {count} processes of {each} divide every batch; --processes 1 starts no other", file=sys.stderr)
    torch.set_num_threads(threads)
    _stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    os.environ |= {
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
    for rank in range(1, count):
        numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), LAUNCHER: "SIGKILL"}
        # Before its imports, so that it does not wait for this process if this one ends meanwhile.
        end = partial(end_with_parent, signal.SIGKILL)
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **numbers},
            preexec_fn=end if sys.platform == "linux" else None,
        )
