"""Weights that are read later: after the processes of a training run have divided the model among them.

Inside `reading_later`, loading a model creates its parameters on the meta device, with shapes alone, and stores the
reader of its weights here. So `train --from` with shards never holds a whole model in a process.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

Values = Iterable[tuple[str, Tensor]]
"""Names of parameters and their values, which are read one at a time, and once."""

_IS_LATER: ContextVar[bool] = ContextVar("is_later", default=False)
_UNREAD: WeakKeyDictionary[nn.Module, Values] = WeakKeyDictionary()


@contextmanager
def reading_later(on: bool = True) -> Iterator[None]:
    """Context manager in which loading a model does not read its weights; with `on=False`, it does (again)."""
    token = _IS_LATER.set(on)
    try:
        yield
    finally:
        _IS_LATER.reset(token)


def keep_unread(model: nn.Module, values: Values) -> bool:
    """Inside `reading_later`, keep the reader of a model's weights and return True; otherwise return False."""
    if _IS_LATER.get():
        _UNREAD[model] = values
    return _IS_LATER.get()


def take_unread(model: nn.Module) -> Values | None:
    """Remove and return the reader of a model's weights, for the caller to use; None if they have been read."""
    return _UNREAD.pop(model, None)
