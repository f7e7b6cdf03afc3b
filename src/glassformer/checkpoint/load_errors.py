"""Context managers that make load errors short and let them name the file or folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.base.checks import shortened
from glassformer.checkpoint.safe_files import CorruptFolderError

WRONG_VALUES = (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that Python raises for values of the wrong type or of an absurd size."""


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Prefix errors that do not mention `path` with it, and shorten long messages."""
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
    """Raise CorruptFolderError naming the file if its values have the wrong type or size."""
    try:
        with naming_errors(path):
            yield
    except WRONG_VALUES as error:
        message_text = f"{type(error).__name__}: {shortened(str(error))}"
        raise CorruptFolderError(f"{path} holds a value that cannot be used: {message_text}") from error
