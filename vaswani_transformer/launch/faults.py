"""A fault ends all ranks with one message; files on disk stay intact."""

import ctypes
import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from huggingface_hub.errors import StrictDataclassError
from transformers import TrainerCallback, TrainingArguments

from ..io.console import exit_status, fault_in_one_line, one_line, out_of_memory, standard_output
from .ending import Ending
from .interruption import Interrupted
from .processes import join_process_group, leave_process_group


_CUT_SHORT = "a file of the data was cut short, cannot be read, or shared memory is full"
_MISTAKES = (ValueError, StrictDataclassError)  # a user's, in options or data
_FIRST_CAUSE = 2.0  # seconds that the rank at fault has to print the cause, before the ranks that lost it print


class TrainingEndedError(RuntimeError):
    """Training cannot go on; the message says why, and what to do."""


@contextmanager
def faults_in_one_line(ending: Ending) -> Iterator[None]:
    """End the program with one line for a fault that is not a bug.

    The exit status is 1, and after a signal 128 + number.

    Raises:
        SystemExit: After the line.
    """
    try:
        with _bus_error_in_one_line(ending):
            yield
    except (Interrupted, OSError, EOFError, ImportError, RuntimeError, MemoryError, *_MISTAKES) as error:
        _end_if_rank_is_lost(error, ending)
        message = _message(error, ending.advice)
        if message is None:
            raise
        if isinstance(error, (*_MISTAKES, OSError)):
            ending.exit(one_line(message))
        ending.announce(one_line(message))
        traceback.clear_frames(error.__traceback__)  # they keep the trainer alive, and the trainer the process group
        error.__traceback__ = None
        leave_process_group()
        sys.exit(exit_status(error))


def _message(error: BaseException, advice: str) -> str | None:
    """What a fault means for the user; None for a bug."""
    match error:
        case Interrupted() | TrainingEndedError() | ValueError() | StrictDataclassError():
            return str(error)
        case ImportError():  # an option chose an optimizer or kernels
            return f"{error}; install it, or leave out the option that needs it"
        case _:
            fault: object = _lost_loader(error) or out_of_memory(error)
            if fault is None and isinstance(error, OSError):
                fault = error
    return None if fault is None else f"{fault}; older checkpoints are intact; {advice}"


@contextmanager
def joined_processes(program: str, timeout_minutes: float, advice: str) -> Iterator[None]:
    """Run a recipe that does not train on all launched processes; an error ends them with one line.

    Args:
        program: Name that begins the line.
        timeout_minutes: Minutes that a collective operation waits for a process, after which all end.
        advice: What to do after a process was lost.

    Raises:
        SystemExit: After an error that is not a bug; see `fault_in_one_line`.
    """
    # Without `use_cpu`, processes that have no GPU form no group, and each would do all the work.
    use_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    join_process_group(use_cpu, timedelta(minutes=timeout_minutes))
    ending = Ending(program, advice)
    try:
        with standard_output():
            yield
    except BaseException as error:
        _end_if_rank_is_lost(error, ending)
        if (message := fault_in_one_line(error, advice)) is None:
            raise
        ending.exit(message, exit_status(error))
    leave_process_group()


class StepTimeout(TrainerCallback):
    """Ends a process whose step hangs, and prints what each of its threads was doing.

    One of several processes is given twice the time, because those that wait for it end with one line first.

    Args:
        seconds: Longest time between two events of a training.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        seconds = self.seconds if args.world_size == 1 else 2 * self.seconds
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # instead of the earlier call's

    on_step_end = on_substep_end = on_prediction_step = on_save = on_step_begin

    def cancel(self) -> None:
        """Watch no longer; training has ended, or raised an error."""
        faulthandler.cancel_dump_traceback_later()


def _end_if_rank_is_lost(error: BaseException, ending: Ending) -> None:
    """End the process if a collective operation noticed a lost rank; for gloo, that is a plain RuntimeError."""
    if isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
        time.sleep(_FIRST_CAUSE)
        cause = one_line(error).rpartition(".cc:")[2].partition("] ")[2] or one_line(error)
        ending.end_at_once(f"another process has ended, is stopped or cut off ({cause}); {ending.advice}")


def _lost_loader(error: BaseException) -> str | None:
    """What ended a worker of a data loader; None if the error has another cause."""
    if isinstance(error, (ConnectionResetError, EOFError)):  # the connection broke before the loader noticed the death
        return f"a process that loads data has ended; {_CUT_SHORT}"
    messages = [str(each) for each in (error, error.__cause__) if str(each).startswith("DataLoader worker")]
    if not messages:
        return None
    cause = re.search("killed by signal: ([^.]*)", " ".join(messages))
    if cause is None:
        return "a process that loads data has ended"
    hint = f"; {_CUT_SHORT}" if cause[1] == signal.strsignal(signal.SIGBUS) else ""
    return f"a process that loads data was killed: {cause[1]}{hint}"


@contextmanager
def _bus_error_in_one_line(ending: Ending) -> Iterator[None]:
    """End the process with one line on SIGBUS: a memory-mapped file has become shorter than its mapping.

    The signal interrupts the instruction that reads, and returning from the handler repeats it. A Python handler would
    run only between bytecodes, which are never reached. The system therefore calls this handler directly.
    """
    process = os.getpid()

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handle(number: int) -> None:
        if os.getpid() != process:  # a forked process leaves the message to its parent
            set_handler(number, None)  # SIG_DFL
            return
        try:
            ending.end_at_once(f"bus error: {_CUT_SHORT}; older checkpoints are intact; {ending.advice}")
        finally:
            os._exit(1)

    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    before = set_handler(signal.SIGBUS, ctypes.cast(handle, ctypes.c_void_p))
    try:
        yield
    finally:
        set_handler(signal.SIGBUS, before)
