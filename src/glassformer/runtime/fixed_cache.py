"""A key-value cache with constant shapes and addresses, so that one recorded step serves every token."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from glassformer.kernels.kernel_set import StepNumbers, TokenPlace
from glassformer.nn.cache import KVCache
from glassformer.runtime.mapped_zeros import map_zeros


class FixedCache(KVCache):
    """A `KVCache` whose shapes become constant with `fix`: then it takes one token per batch row at a time.

    A prompt of any length fills it like a plain cache. After `fix` every forward has the same shapes and addresses: it
    writes keys and values at `position`, a tensor, and attends to the full capacity, with the unfilled part masked. Up
    to rounding, results equal those of the plain cache. Call `count` after each forward, because a recorded forward
    runs no Python.
    """

    def __init__(self, **sizes: Any):
        super().__init__(**sizes)
        self.position = torch.zeros(1, dtype=torch.long, device=self.real.device)
        self.is_fixed = False

    @override
    @staticmethod
    def new_zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return map_zeros(sizes, dtype)
        return KVCache.new_zeros(sizes, dtype, device)

    def clear(self) -> None:
        """Zero the keys and values. Attention multiplies masked values by zero, which would keep a NaN.

        Cross-attention keys and values need no clearing, because those of the next source overwrite them completely.
        """
        for store in (self.keys, self.values):
            torch._foreach_zero_(store)

    def restart(self) -> None:
        """Mark the cache as empty and no longer fixed, so that a new prompt can fill it."""
        self.is_fixed = self.has_padding = self.memory_is_ready = False
        self.length = 0
        self.real.fill_(True)

    def fix(self) -> None:
        """Fix the shapes after the prompt: from now on every forward takes one token per batch row."""
        self.real[:, self.length :] = False
        self.position.fill_(self.length)
        self.is_fixed = self.has_padding = True

    def note_first_step(self) -> None:
        """Set `length` and the flags after a recorded first step, which filled and fixed the cache without Python."""
        self.length = 1
        self.is_fixed = self.has_padding = self.memory_is_ready = True

    @contextmanager
    def discarding_steps(self) -> Iterator[None]:
        """Return a context manager that undoes the steps made inside it. Keys and values stay until overwritten."""
        numbers = {name: getattr(self, name) for name in ("length", "is_fixed", "has_padding", "memory_is_ready")}
        position, real = self.position.clone(), self.real.clone()
        try:
            yield
        finally:
            self.position.copy_(position)
            self.real.copy_(real)
            for name, value in numbers.items():
                setattr(self, name, value)

    def count(self) -> None:
        """Add 1 to `length` after a step of the fixed cache, because a recorded step runs no Python."""
        self.length += 1

    @override
    def note_real(self, real: Tensor | None, n_new: int) -> Tensor | None:
        """Once fixed, mark the new token of each row as real (not padding), and return the mask (B, capacity)."""
        if not self.is_fixed:
            return super().note_real(real, n_new)
        self.real.index_fill_(1, self.position, True)
        return self.real

    @override
    def number_step(self, dtype: torch.dtype, max_len: int | None) -> StepNumbers | None:
        if not self.is_fixed or not self.kernels.can_number_step(self.real, dtype):
            return None
        return self.kernels.number_step(self.real, self.position, dtype, max_len)

    @override
    def n_keys(self, n_new: int) -> int:
        return self.capacity if self.is_fixed else super().n_keys(n_new)

    @override
    def newest(self, keys: Tensor, n_new: int) -> Tensor:
        return keys.index_select(1, self.position) if self.is_fixed else super().newest(keys, n_new)

    @override
    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if not self.is_fixed:
            return super().write(layer, k, v)
        keys, values = self.keys[layer], self.values[layer]
        self.kernels.write_token(k, v, keys, values, self.position)
        return keys, values

    @override
    def next_place(self, layer: int) -> TokenPlace | None:
        return TokenPlace(self.keys[layer], self.values[layer], self.position) if self.is_fixed else None

    @override
    def advance(self, n_new: int) -> None:
        if self.is_fixed:
            self.position.add_(1)
        else:
            super().advance(n_new)

    def reorder_within(self, rows: Tensor, width: int) -> None:
        """Make row i a copy of row `rows[i]`, in place, for the first `len(rows)` batch rows.

        Rows move only within their group of `width` neighbors, the hypotheses of one sentence. A recorded step can
        contain this.
        """
        for keys, values in zip(self.keys, self.values, strict=True):
            self.kernels.move_rows(keys, values, rows, width=width, position=self.position, length=None)
        self.real[: len(rows)] = self.real.index_select(0, rows)

    @override
    def reorder(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        """Make row i a copy of row `rows[i]`, in place, for all batch rows. Cross-attention entries do not move."""
        for keys, values in zip(self.keys, self.values, strict=True):
            self.kernels.move_rows(keys, values, rows, width=None, position=self.position, length=self.length)
        self.real.copy_(self.real.index_select(0, rows))
