"""Outcomes that all ranks share, so that no rank waits for one that gave up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError


Result = TypeVar("Result")


def on_main_process(function: Callable[[], Result]) -> Result:
    """What a function returns that only the main process calls.

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
    """The message of the lowest rank that has one; None if none has."""
    return next((each for each in gather_object([message]) if each is not None), None)


@contextmanager
def all_ranks_or_none(what: str) -> Iterator[None]:
    """Work on files that every rank does, and that ends for all ranks when it fails on one.

    Raises:
        OSError: It failed on a rank; the message begins with `what`.
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


@contextmanager
def file_errors_as_os_error(what: str) -> Iterator[None]:
    """Raise an OSError for whatever libraries raise when a file cannot be written; its message begins with `what`."""
    try:
        yield
    except Exception as error:
        # torch reports a full disk by a plain RuntimeError, tokenizers by a plain Exception; subclasses mean others.
        if not isinstance(error, (OSError, SafetensorError)) and type(error) not in (RuntimeError, Exception):
            raise
        hint = " (is the disk full?)" if isinstance(error, RuntimeError) else ""
        raise OSError(f"{what}: {' '.join(str(error).split())}{hint}") from error
