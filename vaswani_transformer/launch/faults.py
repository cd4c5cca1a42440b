"""The outermost handler of a program on one or several processes: a fault ends all of them with one line."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers.utils import logging

from ..io.console import end_program, exit_status, fault_in_one_line, one_line, standard_output
from .processes import is_first, join_process_group, leave_process_group


_FIRST_CAUSE = 2.0  # seconds that the rank at fault has to print the cause, before the ranks that lost it print


@contextmanager
def exit_on_fault(program: str, advice: str = "continue with --resume") -> Iterator[None]:
    """End the program with one line for a fault that is not a bug, also for the loss of another process.

    Of several processes with the same fault, one prints the line. With `TRANSFORMERS_VERBOSITY=debug` the traceback is
    logged, too.

    Args:
        program: Name that begins the line.
        advice: What to do after an interruption or the loss of a process.

    Raises:
        SystemExit: After the line; the status is 1, and after a signal 128 + its number.
    """
    try:
        with standard_output():
            yield
    except BaseException as error:
        if (cause := _lost_process(error)) is not None:
            time.sleep(_FIRST_CAUSE)
            message: str | None = f"another process has ended, is stopped or cut off ({cause}); {advice}"
        elif (message := fault_in_one_line(error, advice)) is None:
            raise
        logging.get_logger().debug(message, exc_info=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)  # ends the line of a progress bar
        if PartialState().num_processes == 1:
            end_program(f"{program}: {message}", exit_status(error))
        if cause is not None or is_first("the last line"):  # the store may be lost with the process
            print(f"{program}: {message}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_status(error))  # the threads of the process group might otherwise abort the interpreter


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
    with exit_on_fault(program, advice):
        yield
        leave_process_group()
