"""Weights that are read later: when the processes of a training run have divided the model among them.

Inside `reading_later`, a model is loaded as far as its shapes: it stays on the meta device, and the reader of its
weights waits here. So `train --from` with shards never holds a whole model in a process.
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
    """Context manager in which the weights of loaded models are not read yet; with `on=False`, they are again."""
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
    """Return the reader of a model's weights, which the caller has to use; None if they have been read."""
    return _UNREAD.pop(model, None)
