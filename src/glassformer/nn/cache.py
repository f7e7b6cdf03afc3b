"""Keys and values of the tokens seen so far, kept by the caller so that each step computes the new tokens only."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import KernelSet
from glassformer.kernels.registry import PLAIN
from glassformer.nn.tensor_checks import check_divides, check_positive


class KVCache:
    """Preallocated room for one batch: `capacity` tokens of self-attention, and `memory_length` of cross-attention.

    The stack writes with `update` and calls `advance` once per forward; the caller may `reorder` rows (beams, finished
    sentences) and `truncate` (take back a guess). Meant for inference: the writes are in place. Rows that read the same
    memory may share it: `memory_rows` memories serve `batch_size` rows, as many next to each other for each.
    """

    is_fixed = False
    """Whether every forward is one step that looks at all of the room, filled or not."""
    kernels: KernelSet = PLAIN
    """How the steps that use this cache compute; the model's runtime sets it (`runtime/choose_runner.py`)."""
    counts_real_tokens = False
    """Whether a model with plain positions numbers the real tokens instead, so that padding moves none of them."""

    def __init__(
        self,
        *,
        n_layers: int,
        batch_size: int,
        capacity: int,
        n_kv_heads: int,
        head_dim: int,
        memory_length: int = 0,
        memory_rows: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        memory_rows = batch_size if memory_rows is None else memory_rows
        for name, value in (("batch_size", batch_size), ("capacity", capacity), ("memory_rows", memory_rows)):
            check_positive(name, value)
        check_divides("memory_rows", memory_rows, "batch_size", batch_size)

        def room(rows: int, length: int) -> list[Tensor]:
            sizes = rows, n_kv_heads, length, head_dim
            return [torch.zeros(sizes, dtype=dtype, device=device) for _ in range(n_layers)]

        # A tensor for each layer, not one for all: a compiled step can write in place into what it sees whole.
        self.keys, self.values = (room(batch_size, capacity) for _ in range(2))  # (B, G, capacity, D) each
        self.memory_keys, self.memory_values = (room(memory_rows, memory_length) for _ in range(2))
        self._spare: dict[str, list[Tensor]] = {}  # where `reorder` puts the rows, to change places with what they were
        self.real = torch.ones(batch_size, capacity, dtype=torch.bool, device=device)  # True = a real token
        self.has_padding = False
        self.length = 0
        self.memory_is_ready = False

    @classmethod
    def joined(cls, parts: "Sequence[KVCache]", *, lengths: Sequence[int], capacity: int) -> "KVCache":
        """The rows of several caches in one, each ending at the same place, with room for `capacity` tokens.

        `lengths` says how many of each row's last tokens to keep: the others are padding, or are forgotten. What is
        shorter is padded on the left; a memory that is shorter is padded on the right.
        """
        length, rows = max(lengths), sum(part.batch_size for part in parts)
        memory_length = max(part.memory_length for part in parts)
        like = parts[0].keys[0]
        whole = cls(
            n_layers=len(parts[0].keys),
            batch_size=rows,
            capacity=max(capacity, length),
            n_kv_heads=like.shape[1],
            head_dim=like.shape[3],
            memory_length=memory_length,
            dtype=like.dtype,
            device=like.device,
        )
        first = 0
        for part in parts:
            here = slice(first, first + part.batch_size)
            kept = min(length, part.length)
            for name in ("keys", "values"):
                for new, old in zip(getattr(whole, name), getattr(part, name), strict=True):
                    new[here, :, length - kept : length] = old[:, :, part.length - kept : part.length]
            for name in ("memory_keys", "memory_values"):
                for new, old in zip(getattr(whole, name), getattr(part, name), strict=True):
                    new[here, :, : old.shape[2]] = old
            first = here.stop
        places = torch.arange(length, 0, -1, device=whole.real.device)
        whole.real[:, :length] = places <= torch.tensor(lengths, device=whole.real.device)[:, None]
        whole.has_padding = min(lengths) < length
        whole.length = length
        whole.memory_is_ready = all(part.memory_is_ready for part in parts) and memory_length > 0
        return whole

    @property
    def batch_size(self) -> int:
        """How many rows the cache holds now."""
        return self.keys[0].shape[0]

    @property
    def capacity(self) -> int:
        """How many tokens a row can hold."""
        return self.keys[0].shape[2]

    @property
    def memory_rows(self) -> int:
        """How many memories serve the rows."""
        return self.memory_keys[0].shape[0]

    @property
    def memory_length(self) -> int:
        """How many tokens a memory has."""
        return self.memory_keys[0].shape[2]

    @property
    def nbytes(self) -> int:
        """Memory that it holds."""
        stores = self.keys, self.values, self.memory_keys, self.memory_values
        return sum(layer.nbytes for store in stores for layer in store)

    def layer(self, index: int) -> "LayerCache":
        """The part that layer `index` reads and writes."""
        return LayerCache(SelfSlot(self, index), MemorySlot(self, index))

    def note_real(self, real: Tensor | None, n_new: int) -> Tensor | None:
        """Remember which of the next `n_new` tokens are real; the same (B, S) of all up to them, or None if all are."""
        self.check_room(n_new)
        if real is not None:
            self.has_padding = True
            self.real[:, self.length : self.length + n_new] = real
        elif self.has_padding:
            self.real[:, self.length : self.length + n_new] = True
        return self.real[:, : self.length + n_new] if self.has_padding else None

    def n_keys(self, n_new: int) -> int:
        """How many keys a forward with `n_new` tokens looks at."""
        return self.length + n_new

    def newest(self, keys: Tensor, n_new: int) -> Tensor:
        """Of something that each key has, (B or 1, S): what the `n_new` tokens of a forward have."""
        return keys[:, self.length : self.length + n_new]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a layer's new keys and values, (B, G, new, D); all that there are now, (B, G, S, D)."""
        end = self.length + k.shape[2]
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return keys[:, :, :end], values[:, :, :end]

    def check_room(self, n_new: int) -> None:
        """Raise unless `n_new` more tokens fit."""
        if self.length + n_new > self.capacity:
            raise ValueError(
                f"cache holds {self.length} tokens and {n_new} more were given: "
                f"expected at most capacity={self.capacity} together"
            )

    def check_memory(self, length: int) -> None:
        """Raise unless a memory of `length` tokens is what there is room for."""
        if length != self.memory_length:
            raise ValueError(f"memory has {length} tokens: expected the cache's memory_length={self.memory_length}")

    def check_layers(self, depth: int) -> None:
        """Raise unless there is room for each layer of a stack."""
        if depth != len(self.keys):
            raise ValueError(f"cache is for {len(self.keys)} layers: expected {depth}, as the stack has")

    def advance(self, n_new: int) -> None:
        """Count the tokens that every layer has now written."""
        self.length += n_new
        self.memory_is_ready = self.memory_length > 0

    def reorder(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        """Row i becomes what row `rows[i]` was. Fewer rows than before shrink the batch; rows may repeat.

        A memory that is shared stays with its place, unless `memory_rows` says which of them are left, and in which
        order; one that is not goes with its row.
        """
        if len(rows) > self.batch_size:
            raise ValueError(f"rows has {len(rows)} entries: expected at most the cache's {self.batch_size} rows")
        if memory_rows is None and self.memory_rows == self.batch_size:
            memory_rows = rows
        n = len(rows)
        for name in ("keys", "values"):
            store = getattr(self, name)
            spare = self._spare.pop(name, None)
            spare = [torch.empty_like(layer) for layer in store] if spare is None else spare
            for old, new in zip(store, spare, strict=True):  # one copy, straight into place
                torch.index_select(old[:, :, : self.length], 0, rows, out=new[:n, :, : self.length])
            setattr(self, name, [layer[:n] for layer in spare])
            self._spare[name] = [layer[:n] for layer in store]
        if memory_rows is not None:
            self.memory_keys = [layer.index_select(0, memory_rows) for layer in self.memory_keys]
            self.memory_values = [layer.index_select(0, memory_rows) for layer in self.memory_values]
        self.real[:n] = self.real.index_select(0, rows)
        self.real = self.real[:n]

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens; with 0 the memory is forgotten too."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length}: expected 0 to {self.length}, the tokens held")
        self.length = length
        self.memory_is_ready = self.memory_is_ready and length > 0


@dataclass(frozen=True)
class SelfSlot:
    """One layer's self-attention: new keys are written behind the old ones."""

    cache: KVCache
    index: int
    is_complete = False

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write (B, G, new, D) and return everything up to it, (B, G, S, D)."""
        return self.cache.write(self.index, k, v)

    def read(self) -> tuple[Tensor, Tensor]:
        """The keys and values of all tokens."""
        end = self.cache.length
        return self.cache.keys[self.index][:, :, :end], self.cache.values[self.index][:, :, :end]


@dataclass(frozen=True)
class MemorySlot:
    """One layer's cross-attention: computed from the memory at the first step, read ever after."""

    cache: KVCache
    index: int

    @property
    def is_complete(self) -> bool:
        """Whether the memory's keys and values are already here."""
        return self.cache.memory_is_ready

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the memory's keys and values."""
        self.cache.check_memory(k.shape[2])
        self.cache.memory_keys[self.index].copy_(k)
        self.cache.memory_values[self.index].copy_(v)
        return k, v

    def read(self) -> tuple[Tensor, Tensor]:
        """The memory's keys and values, (B, G, S, D)."""
        return self.cache.memory_keys[self.index], self.cache.memory_values[self.index]


@dataclass(frozen=True)
class LayerCache:
    """What one layer sees of the cache."""

    self_attn: SelfSlot
    cross_attn: MemorySlot
