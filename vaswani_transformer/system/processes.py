"""The process group: starting, joining and leaving it, and sharing results and errors among its ranks.

A rank that exits, stops or loses its connection ends the others: torchrun and accelerate's launcher kill them, gloo
sees the closed connection, and a collective operation has a timeout. If one rank may work for hours, the others
therefore wait outside of collective operations, in the group's store.

    on_main_process      one rank works, all get its result or error
    on_each_machine      one rank of each machine works, all on it get its result, and all get the first error
    main_process_first   every rank works, the main process before the others
    all_ranks_or_none    every rank works with files, all get the first error
"""

import ctypes
import gc
import itertools
import os
import platform
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch

# Default arguments of its functions capture the process group that exists at the first import. If
# `DistributedDataParallel` imported it later, they would keep the group alive, and it could not end.
import torch.distributed.nn
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from torch.distributed import PrefixStore, Store, TCPStore
from transformers import TrainingArguments

from .files import file_errors_as_os_error
from .messages import program_name
from .processor import available_cores


_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")  # environment variables of torchrun and accelerate
# Processes that are started; each has a copy of the weights and of the optimizer's state. More cores are threads.
_MOST_PROCESSES = 8
_STORE_TIMEOUT = timedelta(seconds=15)
_LONGEST_ONCE = timedelta(seconds=2)
_LONGEST_WORK = timedelta(days=1)  # for the main process alone
_PR_SET_PDEATHSIG = 1  # from sys/prctl.h
_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None  # a forked process must not load it

Result = TypeVar("Result")
Outcome = tuple[Any, ValueError | OSError | None]

_turns = itertools.count()  # of the main process, counted alike on every rank
_stores: list[TCPStore] = []  # serve the started processes until this one ends
_started: list[subprocess.Popen] = []


def start_processes(options: Namespace) -> None:
    """Make this training process the first of several on the CPU, and start the others.

    Several processes train small models faster than the threads of one. Call it before joining the process group. The
    others run the same command line, and end with this process; a signal to any of them reaches all at the end of a
    step. Under a launcher and on a GPU, nothing is started.

    torchrun would be one more process. It kills the others 30 seconds after a signal, when a step of a large batch may
    not have ended, and prints its traceback after the line of an error.

    A recipe that is called by its path, and not by the command `vaswani`, starts others only for `options.processes`.

    Args:
        options: `processes`, `virtual_ranks`, `use_cpu`, `source_tokens`, `target_tokens` and `max_length`.
    """
    is_launched = any(name in os.environ for name in (*_LAUNCHERS, "WORLD_SIZE"))
    if is_launched or (torch.accelerator.is_available() and not options.use_cpu):
        return
    name, cores = program_name(), min(torch.get_num_threads(), available_cores())
    count = options.processes or _useful_processes(options, cores)
    if count == 1:
        return
    if options.processes is None and not hasattr(sys.modules["__main__"], "COMMAND"):
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


def join_process_group(use_cpu: bool, timeout: timedelta, backend: str | None = None) -> None:
    """Start the process group if a launcher asks for one and none exists; `TrainingArguments` then uses it.

    Otherwise `TrainingArguments` starts a group itself, and ignores `ddp_timeout` on a CPU. When the launcher (torchrun
    or accelerate's) is killed, Linux also ends this process.

    Args:
        use_cpu: Whether to train on the CPU; `ACCELERATE_USE_CPU` also requests this.
        timeout: Longest wait of a collective operation for the other processes.
        backend: `ddp_backend` of `TrainingArguments`.
    """
    if any(name in os.environ for name in _LAUNCHERS):
        end_with_parent(signal.SIGTERM)
    if not torch.distributed.is_initialized():
        joined = threading.Event()
        for process in _started:
            threading.Thread(target=_end_without, args=[process, joined], daemon=True).start()
        use_cpu = use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
        PartialState(cpu=use_cpu, timeout=timeout, **({} if backend is None else {"backend": backend}))
        joined.set()


def _end_without(process: subprocess.Popen, joined: threading.Event) -> None:
    """End this process if a process that it started ends before joining the group, which would wait for it."""
    process.wait()
    if not joined.is_set():
        line = "a process that divides the batches ended before the training; --processes 1 trains in one process"
        print(f"{program_name()}: {line}", file=sys.stderr, flush=True)
        os._exit(1)


def end_with_parent(signal_number: int) -> None:
    """Make Linux send this process a signal when the thread that started it ends."""
    if _LIBRARY is not None:
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


@cache
def end_forks_with_this_process() -> None:
    """Make Linux kill processes forked from now on when this process ends."""
    os.register_at_fork(after_in_child=lambda: end_with_parent(signal.SIGKILL))


def leave_process_group() -> None:
    """End the process group, if there is one, and join its threads; call it when the trainer is out of scope.

    A thread that releases a tensor while the interpreter shuts down aborts the process, although all its work is done.
    The threads are joined only when nothing refers to the group any longer, and a trainer does refer to it.
    """
    gc.collect()  # a trainer and its callbacks refer to one another
    PartialState().destroy_process_group()


@contextmanager
def main_process_first() -> Iterator[None]:
    """Context that the main process leaves before the others enter it; they wait for a day. Collective."""
    state = PartialState()
    if state.num_processes == 1:
        yield
        return
    store, turn = _store(), f"turn {next(_turns)} of the main process"
    if not state.is_main_process:
        store.wait([turn], _LONGEST_WORK)
    try:
        yield
    finally:
        if state.is_main_process:
            store.set(turn, "over")


def on_main_process(function: Callable[[], Result]) -> Result:
    """Call a function on the main process, and return its result on every rank. Collective.

    Raises:
        ValueError, OSError: As from the function, on every rank.
    """
    outcome: Outcome = (None, None)
    with main_process_first():
        if PartialState().is_main_process:
            outcome = _outcome(function)
    return _share(outcome)[0]


def on_each_machine(function: Callable[[], Result]) -> Result:
    """Call a function on the first process of each machine, and return its result on every rank there. Collective.

    Raises:
        ValueError, OSError: As from the function, on every rank; if several machines fail, from the first of them, and
            always a ValueError unless that is the main process's.
    """
    state = PartialState()
    outcome: Outcome = (None, None)
    if state.is_local_main_process:
        result, error = _outcome(function)
        if error is not None and not state.is_main_process:
            error = ValueError(f"{error} (on {platform.node()})")
        outcome = result, error
    return _share(outcome)[state.process_index - state.local_process_index]


def _outcome(function: Callable[[], Any]) -> Outcome:
    try:
        return function(), None
    except (ValueError, OSError) as error:
        return None, error


def _share(outcome: Outcome) -> list[Any]:
    """The results of all ranks; raises the first of their errors on every rank. Collective."""
    outcomes: list[Outcome] = gather_object([outcome])
    for _, error in outcomes:
        if error is not None:
            raise error
    return [result for result, _ in outcomes]


def do_once(what: str, work: Callable[[], object]) -> None:
    """Do `work` on the process of the group that asks first; the others wait for it, for two seconds at most.

    Otherwise the first process might end, and with it the one at work. If the group's store has ended, each does it.
    """
    done = f"{what}, done"
    with suppress(RuntimeError):  # the store has ended
        if _store().add(what, 1) != 1:
            with suppress(RuntimeError):
                _store().wait([done], _LONGEST_ONCE)
            return
    work()
    with suppress(RuntimeError):
        _store().set(done, "")


@cache  # connecting takes a quarter of a second
def _store() -> Store:
    """A connection to the group's store, which the launcher serves, or else rank 0; the group's own may be busy."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    server = TCPStore(address, port, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False)
    return PrefixStore(f"vaswani-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", server)


def may_synchronize(args: TrainingArguments, step: int) -> bool:
    """Whether ranks exchange numbers at a step: on several GPUs every tenth, since the host waits for the device."""
    return args.world_size == 1 or args.device.type == "cpu" or step % 10 == 0


def derived_seed(*numbers: int) -> int:
    """A 32-bit seed for a part of the work, whichever process does it: a hash of non-negative integers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


@contextmanager
def all_ranks_or_none(what: str) -> Iterator[None]:
    """Context for work with files on every rank; a failure on one rank raises on all. Collective.

    Raises:
        OSError: The work failed on a rank; the message begins with `what`.
    """
    outcome: Outcome = (None, None)
    try:
        with file_errors_as_os_error(what):
            yield
    except OSError as error:
        outcome = None, error
    _share(outcome)
