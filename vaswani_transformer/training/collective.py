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
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch reports a full disk by a plain RuntimeError; of the subclasses, every rank raises its own.
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise
        failure = error
    hint = " (is the disk full?)" if isinstance(failure, RuntimeError) else ""
    message = first_of_any_rank(None if failure is None else " ".join(str(failure).split()) + hint)
    if message is not None:
        raise OSError(f"{what}: {message}") from failure
