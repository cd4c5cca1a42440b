"""Errors and results shared by all ranks, so that no rank waits for one that has failed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from ..files import file_errors_as_os_error


Result = TypeVar("Result")


def on_main_process(function: Callable[[], Result]) -> Result:
    """Call a function on the main process, and return its result on every rank. Collective.

    Raises:
        ValueError, OSError: As from the function, on every rank.
    """
    outcome: list = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = function()
        except (ValueError, OSError) as error:
            outcome[1] = error
    result, raised = broadcast_object_list(outcome)
    if raised is not None:
        raise raised
    return result


def first_of_any_rank(message: str | None) -> str | None:
    """The message of the lowest rank that has one; None if no rank has. Collective."""
    return next((each for each in gather_object([message]) if each is not None), None)


@contextmanager
def all_ranks_or_none(what: str) -> Iterator[None]:
    """Context for work with files on every rank; a failure on one rank raises on all. Collective.

    Raises:
        OSError: The work failed on a rank; the message begins with `what`.
    """
    failure = None
    try:
        with file_errors_as_os_error(what):
            yield
    except OSError as error:
        failure = error
    message = first_of_any_rank(None if failure is None else str(failure))
    if message is not None:
        raise OSError(message) from failure
