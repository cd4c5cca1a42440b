"""The end of a program: one line for an error that is not a bug. It imports no torch, which takes seconds."""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import NoReturn

from safetensors import SafetensorError

from ..io.console import one_line, program_name


_FAULTS = (ValueError, OSError, ImportError, OverflowError, UnpicklingError, SafetensorError)


class Interrupted(KeyboardInterrupt):
    """A signal has ended the work; a message says what to do instead of continuing."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.status = 128 + number  # the exit status, by the shell's convention


class LostProcessError(RuntimeError):
    """Another process has ended, is stopped or cut off; the message is that of the library that noticed."""


def end_program(line: str, status: int, error: BaseException) -> NoReturn:
    """End a program of one process with a line and a status, for an error."""
    if status == 1:
        sys.exit(line)
    print(line, file=sys.stderr)
    sys.exit(status)


@contextmanager
def one_line_on_error(
    program: str, advice: str = "", end: Callable[[str, int, BaseException], NoReturn] = end_program
) -> Iterator[None]:
    """End the program with one line for an error that is not a bug; the status is 1, and after a signal 128 plus it.

    With `TRANSFORMERS_VERBOSITY=debug` the traceback is logged, too, once transformers is imported.

    Args:
        program: File name of the recipe, which begins the line.
        advice: What to do after an interruption or the loss of a process.
        end: Called with the line, the status and the error.
    """
    advice, status = advice and f"; {advice}", 1
    try:
        with _standard_output():
            yield
    except BaseException as error:
        message: str | None
        if isinstance(error, LostProcessError):
            message = f"another process has ended, is stopped or cut off ({error}){advice}"
        elif isinstance(error, KeyboardInterrupt):
            message = one_line(error) or f"interrupted{advice}"
            status = error.status if isinstance(error, Interrupted) else 128 + signal.SIGINT
        elif (message := _fault(error)) is None:
            raise
        logging.getLogger("transformers").debug(message, exc_info=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)  # ends the line of a progress bar
        end(f"{program_name(program)}: {message}", status, error)


def _fault(error: BaseException) -> str | None:
    """What to tell the user of an error that is not a bug; None for a bug, which needs its traceback."""
    if isinstance(error, _FAULTS):
        return (one_line(error) or type(error).__name__) + _advice_to_get(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory; take smaller batches, or a smaller model ({one_line(error)[:200]})"
    return None


def _advice_to_get(error: BaseException) -> str:
    """The command that gets a missing file, if it is where configurations expect a public corpus; else nothing."""
    if isinstance(error, FileNotFoundError) and (path := re.match(r"data/([\w-]+)/", str(error.filename))):
        return f"; if it is a file of a public corpus, `vaswani data {path[1]}` gets it"
    return ""


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
