"""The outermost handler of a program on one or several processes: a fault ends all of them with one line."""

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pickle import UnpicklingError
from typing import NoReturn

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tqdm.contrib.logging import logging_redirect_tqdm

from .messages import one_line, program_name
from .processes import is_first_to_ask, join_process_group, leave_process_group


_FAULTS = (ValueError, OSError, ImportError, OverflowError, UnpicklingError, SafetensorError, StrictDataclassError)
_FIRST_CAUSE = 2.0  # seconds for the rank at fault to print the cause before the ranks that lost it print
_LAST_LINE = 0.5  # seconds for a rank to print its line before others end, and with them perhaps this rank


class Interrupted(KeyboardInterrupt):
    """A signal has ended the work; a message may say what to do instead of continuing."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.status = 128 + number  # the exit status, by the shell's convention


@contextmanager
def exit_on_error(advice: str = "") -> Iterator[None]:
    """Report an error that is not a bug in one line, and end the program.

    The loss of another process is such an error. Of several processes with the same line, one prints it. With
    `TRANSFORMERS_VERBOSITY=debug` the traceback is also logged.

    Args:
        advice: Advice after an interruption or the loss of a process.

    Raises:
        SystemExit: After the line; the status is 1, and after a signal 128 plus its number.
    """
    loggers = [logging.root, logging.getLogger("transformers")]
    try:
        with logging_redirect_tqdm(loggers), _standard_output():  # a warning begins a line, not after a progress bar
            yield
    except BaseException as error:
        if (described := _describe(error, advice and f"; {advice}")) is None:
            raise
        message, status = described
        logging.getLogger("transformers").debug(message, exc_info=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)  # ends the line of a progress bar
        if _lost_process(error) is not None:
            time.sleep(_FIRST_CAUSE)
        _end(f"{program_name()}: {message}", status)


def _describe(error: BaseException, advice: str) -> tuple[str, int] | None:
    """The message for an error, and the exit status; None for a bug, which needs its traceback."""
    if isinstance(error, KeyboardInterrupt):
        status = error.status if isinstance(error, Interrupted) else 128 + signal.SIGINT
        return one_line(error) or f"interrupted{advice}", status
    if (cause := _lost_process(error)) is not None:
        return f"another process exited, stopped or lost its connection ({cause}){advice}", 1
    if isinstance(error, _FAULTS):
        message = one_line(error) or type(error).__name__
        if isinstance(error, FileNotFoundError) and (path := re.match(r"data/([\w-]+)/", str(error.filename))):
            message += f"; if it is a file of a public corpus, `vaswani data {path[1]}` gets it"
        return message, 1
    is_torchs = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # on a CPU
    if is_torchs or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return f"there is not enough memory; take smaller batches, or a smaller model ({one_line(error)[:200]})", 1
    return None


def _lost_process(error: BaseException) -> str | None:
    """The message of a lost rank or data-loader worker; None for any other error."""
    if not isinstance(error, RuntimeError):
        return None
    line = one_line(error)
    if line.startswith("DataLoader worker"):
        return line
    if isinstance(error, torch.distributed.DistError) or "gloo" in line:  # gloo raises a plain RuntimeError
        return line.rpartition(".cc:")[2].partition("] ")[2] or line
    return None


@contextmanager
def _standard_output() -> Iterator[None]:
    """Flush output at the end, so that a full disk is an error of the program; a closed pipe just ends it."""
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


def _end(line: str, status: int) -> NoReturn:
    """End this process with a line; of several ranks with the same line, one prints it."""
    if not torch.distributed.is_initialized():
        if status == 1:
            sys.exit(line)
        print(line, file=sys.stderr, flush=True)
        sys.exit(status)
    if is_first_to_ask(line):
        print(line, file=sys.stderr, flush=True)
    else:
        time.sleep(_LAST_LINE)
    sys.stdout.flush()
    os._exit(status)  # the threads of the process group might otherwise abort the interpreter


@contextmanager
def joined_processes(timeout_minutes: float, advice: str) -> Iterator[None]:
    """Run a recipe that does not train on all launched processes, within `exit_on_error`.

    A collective operation waits `timeout_minutes` for a process; then all processes end.
    """
    with exit_on_error(advice):
        # Without `use_cpu`, processes without a GPU form no group, and each would do all the work.
        join_process_group(not torch.accelerator.is_available(), timedelta(minutes=timeout_minutes))
        yield
        leave_process_group()
