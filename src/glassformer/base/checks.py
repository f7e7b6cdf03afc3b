"""Checks of argument values. Each error names the argument, its value and what was expected."""

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value: object) -> str:
    """Return the repr of a value for an error message, shortened if it is long or deeply nested."""
    return _SHORT.repr(value)


def shortened(message: str, limit: int = 1000) -> str:
    """Return the message with its middle cut out if it has more than `limit` characters."""
    if len(message) <= limit:
        return message
    return f"{message[: limit * 2 // 3]} ... {message[5 - limit // 3 :]}"


def check_positive(name: str, value: int) -> None:
    """Raise a ValueError unless `value` is an integer of at least 1. `name` is the argument's name."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={shown(value)}: expected a whole number of at least 1")


def check_probability(name: str, value: float) -> None:
    """Raise a ValueError unless `value` is at least 0 and below 1. `name` is the argument's name."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name}={shown(value)}: expected a probability, at least 0 and below 1")


def check_divides(name: str, value: int, whole_name: str, whole: int) -> None:
    """Raise a ValueError unless `value` divides `whole`. `name` and `whole_name` are the names of the two arguments."""
    if whole % value:
        raise ValueError(f"{name}={value} does not divide {whole_name}={whole}: expected a divisor of {whole}")
