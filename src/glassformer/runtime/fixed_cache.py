"""A cache whose steps are all alike, so that one recording of a step can be played for every token."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.step_kernels import can_move, can_put, move_rows, put_one
from glassformer.nn.cache import KVCache


class FixedCache(KVCache):
    """A `KVCache` that, once fixed, takes one token a row at a place that is itself a tensor.

    It is filled as any other, by a prompt of any length. After `fix` every forward has the same shapes and reads the
    same addresses: keys and values are written at `place`, and all of the room is looked at, under a mask that says
    how much of it is filled. The numbers are those of the plain cache. `count` follows each forward, outside of it.
    """

    def __init__(self, **sizes: Any):
        super().__init__(**sizes)
        self.place = torch.zeros(1, dtype=torch.long, device=self.real.device)
        self.is_fixed = False

    def clear(self) -> None:
        """Forget what was written: what is masked is multiplied by zero all the same, and a NaN would stay one.

        A memory will be overwritten whole.
        """
        for store in (self.keys, self.values):
            torch._foreach_zero_(store)

    def restart(self) -> None:
        """Empty, to be filled anew."""
        self.is_fixed = self.has_padding = self.memory_is_ready = False
        self.length = 0
        self.real.fill_(True)

    def fix(self) -> None:
        """From here on every forward is one step."""
        self.real[:, self.length :] = False
        self.place.fill_(self.length)
        self.is_fixed = self.has_padding = True

    def note_opened(self) -> None:
        """A recording has filled it with a first token and fixed it, of which Python's numbers know nothing."""
        self.length = 1
        self.is_fixed = self.has_padding = self.memory_is_ready = True

    @contextmanager
    def only_trying(self) -> Iterator[None]:
        """Steps in here are forgotten: what they wrote will be written again."""
        numbers = {name: getattr(self, name) for name in ("length", "is_fixed", "has_padding", "memory_is_ready")}
        place, real = self.place.clone(), self.real.clone()
        try:
            yield
        finally:
            self.place.copy_(place)
            self.real.copy_(real)
            for name, value in numbers.items():
                setattr(self, name, value)

    def count(self) -> None:
        """One more step was made: what a recording does not do by itself, for it sees no numbers of Python's."""
        self.length += 1

    def note_real(self, real: Tensor | None, n_new: int) -> Tensor | None:
        """As above; once fixed the tokens are real, and all of the room is spoken of."""
        if not self.is_fixed:
            return super().note_real(real, n_new)
        self.real.index_fill_(1, self.place, True)
        return self.real

    def n_keys(self, n_new: int) -> int:
        """As above."""
        return self.capacity if self.is_fixed else super().n_keys(n_new)

    def newest(self, keys: Tensor, n_new: int) -> Tensor:
        """As above."""
        return keys.index_select(1, self.place) if self.is_fixed else super().newest(keys, n_new)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As above."""
        if not self.is_fixed:
            return super().write(layer, k, v)
        keys, values = self.keys[layer], self.values[layer]
        if can_put(k, v, keys):
            put_one(k, v, keys, values, self.place)
            return keys, values
        keys.index_copy_(2, self.place, k.to(keys.dtype))
        values.index_copy_(2, self.place, v.to(values.dtype))
        return keys, values

    def advance(self, n_new: int) -> None:
        """As above."""
        if self.is_fixed:
            self.place.add_(1)
        else:
            super().advance(n_new)

    def reorder_within(self, rows: Tensor, width: int) -> None:
        """As `reorder`, for the first rows alone, each of which becomes one of its group of `width` neighbours."""
        if not can_move(self.keys[0]):
            order = torch.arange(self.batch_size, device=rows.device)
            order[: len(rows)] = rows
            self._move(order, self.capacity)  # a recording of it sees no length
            return
        for keys, values in zip(self.keys, self.values, strict=True):
            move_rows(keys, values, rows, self.place, width)
        self.real[: len(rows)] = self.real.index_select(0, rows)

    def reorder(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        """Row i becomes what row `rows[i]` was, at the same address; as many rows as there are. Memories stay."""
        self._move(rows, self.length)

    def _move(self, rows: Tensor, length: int) -> None:
        if can_move(self.keys[0], anywhere=True):
            place = torch.full_like(self.place, length)
            for keys, values in zip(self.keys, self.values, strict=True):
                move_rows(keys, values, rows, place, len(rows))
        else:
            for layer in (*self.keys, *self.values):
                filled = layer[:, :, :length]
                filled.copy_(filled.index_select(0, rows))
        self.real.copy_(self.real.index_select(0, rows))
