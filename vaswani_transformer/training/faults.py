"""Faults while training: all ranks end, with one message, and what is on disk stays."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .divergence import DivergenceError
from .interruption import Interrupted
from .processes import leave_process_group
from .watchdog import Watchdog


_FIRST_CAUSE = 2.0  # seconds in which the rank with the cause speaks, before those that only lost it


@contextmanager
def faults_in_one_line(watchdog: Watchdog) -> Iterator[None]:
    """End the program with one line for a fault that is no defect of the program.

    These are an interruption, divergence, a file that cannot be read or written, and a rank that is lost. The exit
    status is 1, after a signal 128 + its number. Other exceptions pass.

    Raises:
        SystemExit: After the line.
    """
    try:
        yield
    except Interrupted as error:
        fault: BaseException = error
        message, status = str(error), error.status
    except DivergenceError as error:
        fault, message, status = error, str(error), 1
    except OSError as error:
        fault, message, status = error, f"{error}; older checkpoints are intact; {watchdog.advice}", 1
    except RuntimeError as error:
        if not is_lost_rank(error):
            raise
        message = "another process has ended or cannot be reached"
        watchdog.end(f"{message}; {watchdog.advice}", delay=_FIRST_CAUSE)
        return
    else:
        return
    watchdog.announce(" ".join(message.split()))
    traceback.clear_frames(fault.__traceback__)  # they refer to the trainer, and it to the process group
    fault.__traceback__ = None
    leave_process_group()
    sys.exit(status)


def is_lost_rank(error: RuntimeError) -> bool:
    """Whether a collective operation has failed because another rank is gone. Gloo raises a plain RuntimeError."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
