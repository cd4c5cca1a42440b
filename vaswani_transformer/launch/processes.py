"""The process group: joining and leaving it; results and errors that its ranks share."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from ..io.files import file_errors_as_os_error
from .watchdog import ends_with_launcher


if torch.distributed.is_available():
    # Default arguments of its functions keep the process group that exists at the first import. Imported later, by
    # `DistributedDataParallel`, they would keep the group alive, and it could not end.
    import torch.distributed.nn

Result = TypeVar("Result")


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
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        return
    with ends_with_launcher():
        PartialState(cpu=use_cpu, timeout=timeout, **({} if backend is None else {"backend": backend}))


def leave_process_group() -> None:
    """End the process group, if there is one, and join its threads; call it when the trainer is out of scope.

    A thread that still releases a tensor while the interpreter shuts down aborts the process, although all its work is
    done. The threads are joined only when nothing refers to the group any longer, and a trainer does refer to it.
    """
    gc.collect()  # a trainer and its callbacks refer to one another
    PartialState().destroy_process_group()


def on_main_process(function: Callable[[], Result]) -> Result:
    """Call a function on the main process, and return its result on every rank. Collective.

    Raises:
        ValueError, OSError: As from the function, on every rank.
    """
    outcome: list = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = function()
        except (ValueError, OSError) as error:
            outcome[1] = error
    result, raised = broadcast_object_list(outcome)
    if raised is not None:
        raise raised
    return result


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
