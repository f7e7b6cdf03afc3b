"""Errors while a model is loaded: each names the file or folder it is about, and is short."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.base.checks import shortened
from glassformer.checkpoint.safe_files import CorruptFolderError

WRONG_VALUES = (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What Python raises where a file holds a value of another type, or of an absurd size."""


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Put `path` before the message of an error that does not name it, and shorten a long message."""
    try:
        yield
    except (ValueError, OSError) as error:
        told = str(error)
        place = path.resolve() if str(path) in (".", "..") else path  # every message holds a full stop
        message = shortened(told) if str(place) in told else f"{place}: {shortened(told)}"
        if message == told:
            raise
        if len(error.args) == 1 and error.args[0] == told:
            error.args = (message,)  # its type stays, and what else it carries
            raise
        raise (OSError if isinstance(error, OSError) else CorruptFolderError)(message) from error


@contextmanager
def refusing_wrong_values(path: Path) -> Iterator[None]:
    """Refuse a file of ours whose values have the wrong type or size, with an error that names it."""
    try:
        with naming_errors(path):
            yield
    except WRONG_VALUES as error:
        told = f"{type(error).__name__}: {shortened(str(error))}"
        raise CorruptFolderError(f"{path} holds a value that cannot be used: {told}") from error
