"""Caches through which a model reads and writes some rows of a `CachePool`, for one forward pass.

- `FirstTokens`: texts that begin with this pass. Their new keys and values are all there are.
- `NextTokens`: several more tokens for some rows, such as the next part of a long prompt.
- `StepTokens`: the same number of tokens for each of the first rows, whatever their lengths: a decoding step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from typing_extensions import override

from glassformer.kernels.kernel_set import TokenPlace
from glassformer.nn.cache import KVCache
from glassformer.runtime.cache_pool import CachePool, PoolRow


class PoolView(KVCache):
    """A `KVCache` whose keys and values are rows of a pool. Subclasses choose the rows and where tokens are written."""

    counts_real_tokens = True

    def __init__(self, pool: CachePool, n_rows: int, memory_length: int = 0):
        # No call of the base class's __init__, which would allocate memory.
        self.pool = pool
        self.kernels = pool.kernels
        self.keys, self.values = pool.keys, pool.values
        self.length = 0
        self.has_padding = False
        self.memory_is_ready = False
        self._n_rows, self._memory_length = n_rows, memory_length

    @property
    @override
    def batch_size(self) -> int:
        return self._n_rows

    @property
    @override
    def memory_rows(self) -> int:
        return self._n_rows

    @property
    @override
    def memory_length(self) -> int:
        return self._memory_length

    @override
    def note_real(self, real: Tensor | None, n_new: int) -> None:
        return None

    @override
    def advance(self, n_new: int) -> None:
        """Do nothing: the caller of the model updates the lengths of the rows."""


class _Places:
    """Where `counts[i]` tokens of each row go: into row `rows[i]` of the pool, from slot `starts[i]` on."""

    def __init__(self, rows: Sequence[PoolRow], starts: Sequence[int], counts: Sequence[int], pool: CachePool):
        places = [
            (number, token, row.index, start + token)
            for number, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True))
            for token in range(count)
        ]
        self._from_row, self._from_token, self._to_row, self._to_token = torch.tensor(places, device=pool.device).T

    def write(self, store: Tensor, new: Tensor) -> None:
        """Write `new` (N, G, T, D), without its padding on the right, into the rows of `store`."""
        store[self._to_row, :, self._to_token] = new[self._from_row, :, self._from_token].to(store.dtype)


def _select(rows: Sequence[PoolRow], device: torch.device) -> slice | Tensor:
    """Return an index that selects these rows: a slice if they are neighbors."""
    indices = [row.index for row in rows]
    if indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return torch.tensor(indices, device=device)


class FirstTokens(PoolView):
    """The rows of texts that begin with this pass, padded on the right.

    For an encoder-decoder, `memory_counts[i]` is the number of encoder outputs of row i.
    """

    def __init__(self, pool: CachePool, rows: Sequence[PoolRow], memory_counts: Sequence[int] = ()):
        super().__init__(pool, len(rows), max(memory_counts, default=0))
        self._rows = _select(rows, pool.device)
        if memory_counts:
            self._memory_places = _Places(rows, [pool.capacity - count for count in memory_counts], memory_counts, pool)

    @override
    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # With the padding: one copy for all rows takes less time. The next tokens of a row overwrite its padding, which
        # is masked until then.
        for store, new in ((self.keys[layer], k), (self.values[layer], v)):
            filled = store[:, :, : new.shape[2]]
            if isinstance(self._rows, slice):
                filled[self._rows] = new
            else:
                filled.index_copy_(0, self._rows, new.to(store.dtype))
        return k, v

    @override
    def write_memory(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.check_memory(k.shape[2])
        for store, new in ((self.keys[layer], k), (self.values[layer], v)):
            self._memory_places.write(store, new)
        return k, v


class RecordedFirstTokens(FirstTokens):
    """Rows whose indices in the pool are in a tensor, which changes between two replays of a recorded pass."""

    def __init__(self, pool: CachePool, rows: Tensor):
        PoolView.__init__(self, pool, len(rows))
        self._rows = rows

    @contextmanager
    def discarding_steps(self) -> Iterator[None]:
        """Return a context manager that does nothing: a pass that is repeated writes the same again."""
        yield


class NextTokens(PoolView):
    """Rows that read `counts[i]` more tokens, padded on the right. Padding is not written."""

    def __init__(self, pool: CachePool, rows: Sequence[PoolRow], counts: Sequence[int], memory_length: int = 0):
        super().__init__(pool, len(rows), memory_length)
        self.memory_is_ready = memory_length > 0
        self._places = _Places(rows, [row.length for row in rows], counts, pool)
        self.starts = torch.tensor([row.length for row in rows], device=pool.device)
        self._end = max(row.length + count for row, count in zip(rows, counts, strict=True))
        self._rows = _select(rows, pool.device)

    @override
    def n_keys(self, n_new: int) -> int:
        return self._end

    @override
    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for store, new in ((self.keys[layer], k), (self.values[layer], v)):
            self._places.write(store, new)
        return self.keys[layer][self._rows, :, : self._end], self.values[layer][self._rows, :, : self._end]

    @override
    def read_memory(self, layer: int) -> tuple[Tensor, Tensor]:
        first = self.capacity - self._memory_length
        return self.keys[layer][self._rows, :, first:], self.values[layer][self._rows, :, first:]


class StepTokens(PoolView):
    """The first rows of the pool, each of which takes `n_tokens` tokens: row i from `starts[i]` on.

    The tensors `starts` and `is_active`, (rows,), may change between passes of a recorded step. Attention reads the
    first `n_keys` slots of the rows, of which each query sees those up to its own. If all rows start at `even_start`,
    and `n_keys` ends with their tokens, no mask is needed.
    """

    def __init__(
        self,
        pool: CachePool,
        starts: Tensor,
        is_active: Tensor | None = None,
        *,
        n_tokens: int = 1,
        n_keys: int | None = None,
        even_start: int | None = None,
        memory_length: int = 0,
    ):
        super().__init__(pool, len(starts), memory_length)
        self.memory_is_ready = memory_length > 0
        self._starts, self.is_active = starts, is_active
        self.starts = starts if even_start is None else None
        self.length = even_start or 0
        self._end = self.capacity if n_keys is None else n_keys
        heads = torch.arange(len(starts) * pool.keys[0].shape[1], device=pool.device)
        self._offsets = (heads * self.capacity).view(len(starts), -1, 1) + torch.arange(n_tokens, device=pool.device)
        """(rows, G, n_tokens), the slots for a row that starts at 0. Slots are numbered across all rows and heads."""
        self._slots = heads
        """(rows · G · n_tokens,), the slots that this pass writes."""

    @contextmanager
    def discarding_steps(self) -> Iterator[None]:
        """Return a context manager for steps that are made again later: they overwrite what these have written."""
        yield

    @override
    def n_keys(self, n_new: int) -> int:
        return self._end

    @override
    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer == 0:  # once per pass, for all layers
            self._slots = (self._offsets + self._starts[:, None, None]).view(-1)
        n = self._n_rows
        if k.shape[2] == 1 and self.kernels.can_write_rows(k, v, self.keys[layer]):
            self.kernels.write_rows(k, v, self.keys[layer], self.values[layer], self._starts)
        else:
            for store, new in ((self.keys[layer], k), (self.values[layer], v)):
                width = store.shape[3]
                store.view(-1, width).index_copy_(0, self._slots, new.reshape(-1, width).to(store.dtype))
        return self.keys[layer][:n, :, : self._end], self.values[layer][:n, :, : self._end]

    @override
    def next_place(self, layer: int) -> TokenPlace | None:
        n, keys, values = self._n_rows, self.keys[layer], self.values[layer]
        if self._offsets.shape[2] > 1 or not self.kernels.can_write_rows(keys, values, keys):
            return None
        return TokenPlace(keys[:n, :, : self._end], values[:n, :, : self._end], self._starts)

    @override
    def read_memory(self, layer: int) -> tuple[Tensor, Tensor]:
        n, first = self._n_rows, self.capacity - self._memory_length
        return self.keys[layer][:n, :, first:], self.values[layer][:n, :, first:]
