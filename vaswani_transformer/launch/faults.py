"""The outermost handler of a program on one or several processes: a fault ends all of them with one line."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import torch
from huggingface_hub.errors import StrictDataclassError

from ..io.console import one_line
from .endings import LostProcessError, end_program, one_line_on_error
from .processes import is_first, join_process_group, leave_process_group


_FIRST_CAUSE = 2.0  # seconds that the rank at fault has to print the cause, before the ranks that lost it print


@contextmanager
def exit_on_error(program: str, advice: str = "") -> Iterator[None]:
    """End the program with one line for an error that is not a bug, also for the loss of another process.

    If several processes have the same error, one prints the line. With `TRANSFORMERS_VERBOSITY=debug` the traceback is
    logged, too.

    Args:
        program: File name of the recipe, which begins the line.
        advice: What to do after an interruption or the loss of a process.

    Raises:
        SystemExit: After the line; the status is 1, and after a signal 128 plus its number.
    """
    with one_line_on_error(program, advice, _end), _plain_errors():
        yield


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn errors of torch and huggingface_hub into those that `one_line_on_error` knows."""
    try:
        yield
    except StrictDataclassError as error:
        raise ValueError(str(error)) from error
    except RuntimeError as error:
        if (cause := _lost_process(error)) is not None:
            time.sleep(_FIRST_CAUSE)
            raise LostProcessError(cause) from error
        is_plain = "can't allocate memory" in str(error)  # of torch, on a CPU
        if is_plain or isinstance(error, torch.OutOfMemoryError):
            raise MemoryError(str(error)) from error
        raise


def _lost_process(error: RuntimeError) -> str | None:
    """The line in which a collective operation says that it lost a rank, or a loader a worker; None otherwise."""
    line = one_line(error)
    if line.startswith("DataLoader worker"):
        return line
    if isinstance(error, torch.distributed.DistError) or "gloo" in line:  # gloo raises a plain RuntimeError
        return line.rpartition(".cc:")[2].partition("] ")[2] or line
    return None


def _end(line: str, status: int, error: BaseException) -> NoReturn:
    """End this process; of several with the same error, one prints the line."""
    if not torch.distributed.is_initialized():
        end_program(line, status, error)
    if isinstance(error, LostProcessError) or is_first("the last line"):  # the store may be lost with the process
        print(line, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the threads of the process group might otherwise abort the interpreter


@contextmanager
def joined_processes(program: str, timeout_minutes: float, advice: str) -> Iterator[None]:
    """Run a recipe that does not train on all launched processes, as in `exit_on_error`.

    A collective operation waits `timeout_minutes` for a process, after which all end.
    """
    # Without `use_cpu`, processes that have no GPU form no group, and each would do all the work.
    join_process_group(not torch.accelerator.is_available(), timedelta(minutes=timeout_minutes))
    with exit_on_error(program, advice):
        yield
        leave_process_group()
