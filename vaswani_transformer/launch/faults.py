"""The outermost handler of a program on one or several processes: a fault ends all of them with one line."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pickle import UnpicklingError

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import logging

from ..io.console import one_line, program_name
from .processes import is_first, join_process_group, leave_process_group
from .signals import Interrupted


_FIRST_CAUSE = 2.0  # seconds that the rank at fault has to print the cause, before the ranks that lost it print
_FAULTS = (ValueError, OSError, ImportError, OverflowError, UnpicklingError, SafetensorError, StrictDataclassError)


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
    advice, status = advice and f"; {advice}", 1
    try:
        with _standard_output():
            yield
    except BaseException as error:
        if (cause := _lost_process(error)) is not None:
            time.sleep(_FIRST_CAUSE)
            message: str | None = f"another process has ended, is stopped or cut off ({cause}){advice}"
        elif isinstance(error, KeyboardInterrupt):
            message = one_line(error) or f"interrupted{advice}"
            status = error.status if isinstance(error, Interrupted) else 128 + signal.SIGINT
        elif (message := _fault(error)) is None:
            raise
        logging.get_logger().debug(message, exc_info=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)  # ends the line of a progress bar
        line = f"{program_name(program)}: {message}"
        if not torch.distributed.is_initialized():
            if status == 1:
                sys.exit(line)
            print(line, file=sys.stderr)
            sys.exit(status)
        if cause is not None or is_first("the last line"):  # the store may be lost with the process
            print(line, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the threads of the process group might otherwise abort the interpreter


def _fault(error: BaseException) -> str | None:
    """What to tell the user of an error that is not a bug; None for a bug, which needs its traceback."""
    if isinstance(error, _FAULTS):
        return (one_line(error) or type(error).__name__) + _advice_to_get(error)
    is_plain = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # of torch, on a CPU
    if is_plain or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return f"there is not enough memory; take smaller batches, or a smaller model ({one_line(error)[:200]})"
    return None


def _advice_to_get(error: BaseException) -> str:
    """The command that gets a missing file, if it is where configurations expect a public corpus; else nothing."""
    if isinstance(error, FileNotFoundError) and (path := re.match(r"data/([\w-]+)/", str(error.filename))):
        return f"; if it is a file of a public corpus, `vaswani data {path[1]}` gets it"
    return ""


def _lost_process(error: BaseException) -> str | None:
    """The line in which a collective operation says that it lost a rank, or a loader a worker; None otherwise."""
    line = one_line(error)
    if isinstance(error, RuntimeError) and line.startswith("DataLoader worker"):
        return line
    # gloo raises a plain RuntimeError
    if isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in line):
        return line.rpartition(".cc:")[2].partition("] ")[2] or line
    return None


@contextmanager
def _standard_output() -> Iterator[None]:
    """Write buffered output at the end, so that a full disk is an error of the program; a closed pipe just ends it."""
    try:
        yield
        sys.stdout.flush()
    except BaseException as error:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would write again at exit
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has ended
            sys.exit(1)
        raise


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
