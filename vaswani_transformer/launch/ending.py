"""The end of a program on all its processes, with one line that says what happened."""

import os
import sys
import threading
from typing import NoReturn

from accelerate import PartialState
from tqdm.auto import tqdm

from ..io.console import end_program
from .processes import is_first_to_claim


class Ending:
    """Ends this process with a line that only one process prints.

    Args:
        program: Name that begins the line.
        advice: What the line tells the user to do.
    """

    def __init__(self, program: str, advice: str = "continue with --resume") -> None:
        self.program = program
        self.advice = advice
        self._announced = threading.Lock()  # never released: of two threads, only the first announces

    def announce(self, message: str) -> None:
        """Print the line, unless another thread or process has printed one already."""
        if self._announced.acquire(blocking=False) and is_first_to_claim("the last line"):
            tqdm.write(f"{self.program}: {message}", file=sys.stderr)  # not in the middle of a progress bar

    def exit(self, message: str, status: int = 1) -> NoReturn:
        """Announce a message and exit, so that contexts are left."""
        if PartialState().num_processes == 1:
            end_program(f"{self.program}: {message}", status)
        self.announce(message)
        sys.exit(status)

    def end_at_once(self, message: str, status: int = 1) -> NoReturn:
        """Announce a message and end the process, even if its threads are blocked."""
        self.announce(message)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
