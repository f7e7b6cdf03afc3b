"""Work on many inputs that several processes divide: the batches of a validation, the sentences to decode.

A function that computes something for each of many inputs calls `divide_work`. Usually that computes all of them. In
a training run of several processes, inside `dividing`, each process computes a part, and all get all results.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Divide = Callable[[Sequence[Any], Callable[[Sequence[Any]], list[Any]]], list[Any]]
"""Calls a function with a part of some inputs in each process, and returns the results of all inputs, in order."""

_DIVIDE: ContextVar[Divide | None] = ContextVar("divide", default=None)


@contextmanager
def dividing(divide: Divide) -> Iterator[None]:
    """Context manager in which `divide_work` uses `divide`. All processes have to do the same work in it."""
    token = _DIVIDE.set(divide)
    try:
        yield
    finally:
        _DIVIDE.reset(token)


def divide_work(items: Sequence[Item], work: Callable[[Sequence[Item]], list[Result]]) -> list[Result]:
    """Return `work(items)`, a list with one result per item, which several processes may compute together.

    The result for an item may depend on the other items by rounding errors only.
    """
    divide = _DIVIDE.get()
    if divide is None:
        return work(items)

    def alone(part: Sequence[Item]) -> list[Result]:
        token = _DIVIDE.set(None)
        try:
            return work(part)
        finally:
            _DIVIDE.reset(token)

    return divide(items, alone)
