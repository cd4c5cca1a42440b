"""Text of data on a terminal, and the end of a program by an error.

Data may contain markup of rich (`[/INST]`, `:smile:`) and escape sequences, which a terminal executes. Recipes print it
through `PlainConsole`, and their errors through `exit_on_error`, the outermost handler.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch
from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
from rich.text import Text
from safetensors import SafetensorError


_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")


def printable(text: str) -> str:
    """Escape control characters, except line feeds and tabs, and lone surrogates."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def one_line(message: object) -> str:
    """The message of an error as one printable line."""
    return printable(" ".join(str(message).split()))


def out_of_memory(error: BaseException) -> str | None:
    """What to tell the user of an allocation that failed; None for any other error."""
    is_plain = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # of torch, on a CPU
    if not is_plain and not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return None
    return f"there is not enough memory; take smaller batches, or a smaller model ({one_line(error)[:200]})"


def fault_in_one_line(error: BaseException, advice: str = "") -> str | None:
    """What to tell the user of an error that is not a bug; None for a bug, which needs its traceback.

    Args:
        error: What ended the program.
        advice: What to do after an interruption.
    """
    if isinstance(error, KeyboardInterrupt):
        return one_line(error) or "; ".join(filter(None, ("interrupted", advice)))
    if isinstance(
        error, (ValueError, OSError, ImportError, OverflowError, UnpicklingError, SafetensorError, StrictDataclassError)
    ):
        return one_line(error) or type(error).__name__
    return out_of_memory(error)


def exit_status(error: BaseException) -> int:
    """The status of a program that ends with an error; after a signal, 128 and its number."""
    return getattr(error, "status", 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


@contextmanager
def exit_on_error(program: str, advice: str = "") -> Iterator[None]:
    """End the program with one line, its name first, unless the error is a bug; see `fault_in_one_line`."""
    try:
        with standard_output():
            yield
    except BaseException as error:
        if (message := fault_in_one_line(error, advice)) is None:
            raise
        end_program(f"{program}: {message}", exit_status(error))


def end_program(line: str, status: int) -> NoReturn:
    """Print a line to standard error, and exit."""
    if status == 1:
        sys.exit(line)
    print(line, file=sys.stderr)
    sys.exit(status)


@contextmanager
def standard_output() -> Iterator[None]:
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


class PlainConsole(Console):
    """A console that shows strings as they are: no markup, no emoji codes, no control characters.

    This applies to printed strings, and to strings as cells, headings and titles of tables. Lines are broken at the
    width of a terminal; in files and pipes they are not, so that names can be searched for and copied.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **kwargs})
        if not self.is_terminal:
            self.width = 10_000

    def render_str(self, text: str, **kwargs: Any) -> Text:
        return super().render_str(printable(text), **kwargs)
