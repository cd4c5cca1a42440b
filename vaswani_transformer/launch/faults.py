"""The outermost handler of a program on one or several processes: a fault ends all of them with one line."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers.utils import logging

from ..io.console import end_program, exit_status, fault_in_one_line, one_line, standard_output
from .processes import is_first_to_claim, join_process_group, leave_process_group


_FIRST_CAUSE = 2.0  # seconds that the rank at fault has to print the cause, before the ranks that lost it print


class ExitReporter:
    """Ends this process with a line that only one of the processes prints.

    Args:
        program: Name that begins the line.
        advice: What to do after an interruption or the loss of a process.
    """

    def __init__(self, program: str, advice: str = "continue with --resume") -> None:
        self.program = program
        self.advice = advice

    def report(self, message: str, is_shared: bool = True) -> None:
        """Print the line; if it is shared, unless another process has printed one already."""
        if not is_shared or is_first_to_claim("the last line"):
            print(f"{self.program}: {message}", file=sys.stderr, flush=True)

    def exit(self, message: str, status: int = 1, is_shared: bool = True) -> NoReturn:
        """Report a message and end the process; call it from the outermost context.

        Args:
            message: What the line says.
            status: Exit status.
            is_shared: Whether one process prints for all. The store that decides it may be lost with a process.
        """
        if sys.stderr.isatty():
            print(file=sys.stderr)  # ends the line of a progress bar
        if PartialState().num_processes == 1:
            end_program(f"{self.program}: {message}", status)
        self.report(message, is_shared)
        sys.stdout.flush()
        os._exit(status)  # the threads of the process group might otherwise abort the interpreter


@contextmanager
def exit_on_fault(reporter: ExitReporter) -> Iterator[None]:
    """End the program with one line for a fault that is not a bug, also for the loss of another process.

    With `TRANSFORMERS_VERBOSITY=debug` the traceback is logged, too.

    Raises:
        SystemExit: After the line; the status is 1, and after a signal 128 + its number.
    """
    try:
        with standard_output():
            yield
    except BaseException as error:
        if (cause := _lost_process(error)) is not None:
            time.sleep(_FIRST_CAUSE)
            lost = f"another process has ended, is stopped or cut off ({cause}); {reporter.advice}"
            reporter.exit(lost, is_shared=False)
        if (message := fault_in_one_line(error, reporter.advice)) is None:
            raise
        logging.get_logger().debug(message, exc_info=True)
        reporter.exit(message, exit_status(error))


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
def joined_processes(program: str, timeout_minutes: float, advice: str) -> Iterator[None]:
    """Run a recipe that does not train on all launched processes; see `exit_on_fault`.

    Args:
        program: Name that begins the line of an error.
        timeout_minutes: Minutes that a collective operation waits for a process, after which all end.
        advice: What to do after a process was lost.
    """
    # Without `use_cpu`, processes that have no GPU form no group, and each would do all the work.
    use_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    join_process_group(use_cpu, timedelta(minutes=timeout_minutes))
    with exit_on_fault(ExitReporter(program, advice)):
        yield
        leave_process_group()
