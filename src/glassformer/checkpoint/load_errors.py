"""Context managers that shorten the messages of load errors and add the name of the file or folder to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.base.checks import shortened
from glassformer.checkpoint.safe_files import CorruptFolderError

WRONG_VALUES = (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that Python raises when a config holds a value of the wrong type or of an absurd size."""


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Context manager that shortens the message of a ValueError or OSError.

    `path` is put in front of the message, unless the message contains it already.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        message_text = str(error)
        place = path.resolve() if str(path) in (".", "..") else path  # "." occurs in every message
        message = shortened(message_text) if str(place) in message_text else f"{place}: {shortened(message_text)}"
        if message == message_text:
            raise
        if len(error.args) == 1 and error.args[0] == message_text:
            error.args = (message,)  # keep the exception's type and other attributes
            raise
        raise (OSError if isinstance(error, OSError) else CorruptFolderError)(message) from error


@contextmanager
def refusing_wrong_values(path: Path) -> Iterator[None]:
    """Context manager that converts the exceptions in `WRONG_VALUES` to a CorruptFolderError naming the file `path`.

    A ValueError or OSError passes through `naming_errors`.
    """
    try:
        with naming_errors(path):
            yield
    except WRONG_VALUES as error:
        message_text = f"{type(error).__name__}: {shortened(str(error))}"
        raise CorruptFolderError(f"{path} holds a value that cannot be used: {message_text}") from error
