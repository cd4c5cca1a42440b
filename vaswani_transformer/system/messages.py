"""Messages: printable text, errors in one line, and the name of the program that they begin with."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


# Control characters except line feeds and tabs, marks that change the direction of surrounding text, surrogates, and
# characters that XML forbids.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """Escape control characters, except line feeds and tabs, marks of direction, and lone surrogates."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def one_line(message: object) -> str:
    """The message of an error as one printable line; an error of the operating system is shown without its number."""
    if isinstance(message, FileNotFoundError) and message.filename:
        message = f"there is no file or directory {message.filename}"
    elif isinstance(message, OSError) and message.strerror:
        message = f"{message.filename}: {message.strerror}" if message.filename else message.strerror
    return printable(" ".join(str(message).split()))


def vaswani_command() -> str | None:
    """The command that runs the recipe, such as "vaswani translate"; None if the recipe was called by its path."""
    return getattr(sys.modules["__main__"], "COMMAND", None)


def program_name() -> str:
    """The name of the running recipe in messages: "translate.py", or "vaswani translate" if called so."""
    return vaswani_command() or Path(sys.argv[0]).name


@contextmanager
def errors_begin_with(place: str) -> Iterator[None]:
    """Turn any exception into a one-line ValueError that starts with `place`."""
    try:
        yield
    except Exception as error:  # libraries raise almost any type on an unusable file
        text = one_line(error)
        kind = "" if type(error) is ValueError and text else f"{type(error).__name__}: "
        raise ValueError(f"{place}: {kind}{text[:400]}") from error
