"""The process group: joining and leaving it; results, errors and claims that its ranks share.

A rank that has died, is stopped or cut off ends the others: torchrun and accelerate's launcher kill them, gloo sees the
closed connection, and a collective operation has a timeout. What one rank may do for hours, the others therefore await
outside of collective operations, in the group's store.
"""

import ctypes
import gc
import itertools
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed import PrefixStore, Store, TCPStore

from ..io.files import file_errors_as_os_error


if torch.distributed.is_available():
    # Default arguments of its functions keep the process group that exists at the first import. Imported later, by
    # `DistributedDataParallel`, they would keep the group alive, and it could not end.
    import torch.distributed.nn

# Environment variable: id of the parent process. This process ends when that one dies, as under torchrun.
LAUNCHER = "VASWANI_LAUNCHER"
_STORE_SECONDS = 15.0  # how long the store may take to answer
_LONGEST_WORK = timedelta(days=1)  # of the main process alone
_PR_SET_PDEATHSIG = 1  # from sys/prctl.h

Result = TypeVar("Result")

_turns = itertools.count()  # of the main process, counted alike on every rank


def end_with_launcher() -> None:
    """Let Linux send SIGTERM to this process when its launcher dies: torchrun, accelerate's or a sweep; not a shell.

    The process would otherwise wait for ranks that nobody starts, or train on when the next launch begins.
    """
    launcher = os.environ.get(LAUNCHER)
    is_launched = launcher or "TORCHELASTIC_RUN_ID" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ
    if sys.platform != "linux" or not is_launched:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if launcher and int(launcher) != os.getppid():  # it has died before the call
        signal.raise_signal(signal.SIGTERM)


def join_process_group(use_cpu: bool, timeout: timedelta, backend: str | None = None) -> None:
    """Start the process group if a launcher asks for one and none exists; `TrainingArguments` then uses it.

    Otherwise `TrainingArguments` starts a group itself, and ignores `ddp_timeout` on a CPU.

    Args:
        use_cpu: Whether to train on the CPU.
        timeout: How long a collective operation may wait for the other processes.
        backend: `ddp_backend` of `TrainingArguments`.

    Raises:
        ValueError: A backend is given, but there is no launcher.
    """
    if backend is not None and "LOCAL_RANK" not in os.environ:
        raise ValueError(
            f"ddp_backend: {backend} connects several processes, this is one; start them with torchrun or accelerate "
            f"launch, or leave it out"
        )
    end_with_launcher()
    if torch.distributed.is_available() and not torch.distributed.is_initialized():
        PartialState(cpu=use_cpu, timeout=timeout, **({} if backend is None else {"backend": backend}))


def leave_process_group() -> None:
    """End the process group, if there is one, and join its threads; call it when the trainer is out of scope.

    A thread that still releases a tensor while the interpreter shuts down aborts the process, although all its work is
    done. The threads are joined only when nothing refers to the group any longer, and a trainer does refer to it.
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
    outcome: list = [None, None]
    with main_process_first():
        if PartialState().is_main_process:
            try:
                outcome[0] = function()
            except (ValueError, OSError) as error:
                outcome[1] = error
    result, raised = broadcast_object_list(outcome)
    if raised is not None:
        raise raised
    return result


def on_each_machine(function: Callable[[], Result]) -> Result:
    """Call a function on the first process of each machine, and return its result on every rank there. Collective.

    Raises:
        ValueError, OSError: As from the function, on every rank; of several machines, from the first that failed.
    """
    state = PartialState()
    outcome: list = [None, None]
    if state.is_local_main_process:
        try:
            outcome[0] = function()
        except (ValueError, OSError) as error:
            outcome[1] = error if state.is_main_process else type(error)(f"{error} (on {platform.node()})")
    outcomes = gather_object([outcome])
    raised = next((error for _, error in outcomes if error is not None), None)
    if raised is not None:
        raise raised
    return outcomes[state.process_index - state.local_process_index][0]


def is_first_to_claim(what: str) -> bool:
    """Whether this process is the first of the group to claim something, such as the last line of the program.

    Every process is the first of a store that has ended.
    """
    try:
        return PartialState().num_processes == 1 or _store().add(f"claims of {what}", 1) == 1
    except RuntimeError:
        return True


def _store() -> Store:
    """A connection to the group's store, which the launcher serves, or else rank 0; the group's own may be busy."""
    server = _connection(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return PrefixStore(f"vaswani-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", server)


@cache  # because connecting takes a quarter of a second
def _connection(address: str, port: int) -> TCPStore:
    wait = timedelta(seconds=_STORE_SECONDS)
    return TCPStore(address, port, is_master=False, timeout=wait, wait_for_workers=False)


def derived_seed(*numbers: int) -> int:
    """A seed of 32 bits for a part of the work, whichever process does it: a hash of non-negative integers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def first_of_any_rank(message: str | None) -> str | None:
    """The message of the lowest rank that has one; None if no rank has. Collective."""
    return next((each for each in gather_object([message]) if each is not None), None)


@contextmanager
def all_ranks_or_none(what: str) -> Iterator[None]:
    """Context for work with files on every rank; a failure on one rank raises on all. Collective.

    Raises:
        OSError: The work failed on a rank; the message begins with `what`.
    """
    failure = None
    try:
        with file_errors_as_os_error(what):
            yield
    except OSError as error:
        failure = error
    message = first_of_any_rank(None if failure is None else str(failure))
    if message is not None:
        raise OSError(message) from failure
