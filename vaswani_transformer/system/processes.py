"""The process group: joining and leaving it, and sharing results and errors among its ranks.

A rank that exits, stops or loses its connection ends the others: torchrun and accelerate's launcher kill them, gloo
sees the closed connection, and a collective operation has a timeout. If one rank may work for hours, the others
therefore wait outside of collective operations, in the group's store.

    on_main_process      one rank works, all get its result or error
    on_each_machine      one rank of each machine works, all on it get its result, and all get the first error
    main_process_first   every rank works, the main process before the others
    all_ranks_or_none    every rank works with files, all get the first error
"""

import gc
import itertools
import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch

# Default arguments of its functions capture the process group that exists at the first import. If
# `DistributedDataParallel` imported it later, they would keep the group alive, and it could not end.
import torch.distributed.nn
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from torch.distributed import PrefixStore, Store, TCPStore

from .files import file_errors_as_os_error
from .launcher import LAUNCHERS, end_with_parent, needing_started_processes


_STORE_TIMEOUT = timedelta(seconds=15)
_LONGEST_WORK = timedelta(days=1)  # for the main process alone

Result = TypeVar("Result")
Outcome = tuple[Any, ValueError | OSError | None]

_turns = itertools.count()  # of the main process, counted alike on every rank


def join_process_group(use_cpu: bool, timeout: timedelta, backend: str | None = None) -> None:
    """Start the process group if a launcher asks for one and none exists; `TrainingArguments` then uses it.

    Otherwise `TrainingArguments` starts a group itself, and ignores `ddp_timeout` on a CPU. When the launcher (torchrun
    or accelerate's) is killed, Linux also ends this process.

    Args:
        use_cpu: Whether to train on the CPU; `ACCELERATE_USE_CPU` also requests this.
        timeout: Longest wait of a collective operation for the other processes.
        backend: `ddp_backend` of `TrainingArguments`.
    """
    if any(name in os.environ for name in LAUNCHERS):
        end_with_parent(signal.SIGTERM)
    if not torch.distributed.is_initialized():
        use_cpu = use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
        with needing_started_processes():
            PartialState(cpu=use_cpu, timeout=timeout, **({} if backend is None else {"backend": backend}))


def leave_process_group() -> None:
    """End the process group, if there is one, and join its threads; call it when the trainer is out of scope.

    A thread that releases a tensor while the interpreter shuts down aborts the process, although all its work is done.
    The threads are joined only when nothing refers to the group any longer, and a trainer does refer to it.
    """
    gc.collect()  # a trainer and its callbacks refer to one another
    PartialState().destroy_process_group()


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block on the main process first, then on all others, which wait up to a day. Collective."""
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
        ValueError, OSError: The error of the first machine that failed, on every rank. Errors of other machines than
            the main process's become a ValueError that names the machine.
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


def is_first_to_ask(question: str) -> bool:
    """Whether no other rank has asked the same; True on every rank if the group's store has ended."""
    with suppress(RuntimeError):
        return _store().add(question, 1) == 1
    return True


@cache  # connecting takes a quarter of a second
def _store() -> Store:
    """A connection to the group's store, which the launcher serves, or else rank 0; the group's own may be busy."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    server = TCPStore(address, port, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False)
    return PrefixStore(f"vaswani-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", server)


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
