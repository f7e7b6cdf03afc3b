"""The key-value cache of decoding. With it, each forward pass computes only the new tokens.

In this module, a row is one sequence of the batch, and a memory is an encoder output that rows attend to by
cross-attention. A model creates an empty cache (`new_cache`) and keeps no reference to it; the caller, such as
`runtime/step_runner.py`, owns the cache and passes it to each call. `SelfSlot` and `MemorySlot` give one layer access
to its self-attention and cross-attention part.
"""

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.kernels.kernel_registry import PLAIN
from glassformer.kernels.kernel_set import KernelSet, StepNumbers, TokenPlace
from glassformer.nn.tensor_checks import check_divides, check_positive


class KVCache:
    """Preallocated keys and values of one batch, for all layers of a stack.

    Each layer writes its new keys and values; the stack calls `advance` once per forward pass. The caller may `reorder`
    the sequences (beam search, finished sentences) and `truncate` them (rejected tokens). Writes are in place, so the
    cache is for inference only.

    Args:
        capacity: Number of tokens that self-attention can store per sequence.
        memory_length: Number of tokens of the encoder's output, for cross-attention; 0 if there is no encoder.
        memory_rows: Number of encoder outputs, a divisor of `batch_size`. Each group of batch_size / memory_rows
            neighboring sequences, such as the beams of one sentence, shares one. The default is one per sequence.
    """

    is_fixed = False
    """Whether each forward pass takes one token per sequence and attends to the whole capacity; see `FixedCache`."""
    kernels: KernelSet = PLAIN
    """Kernels that decoding steps with this cache use; set in `runtime/choose_runner.py`."""
    starts: Tensor | None = None
    """(B,), where the new tokens of each sequence begin, if that differs by sequence; see `runtime/pool_views.py`."""
    is_active: Tensor | None = None
    """(B,), False for sequences whose results are not used, so that attention skips them; only with `starts`."""
    counts_real_tokens = False
    """Whether positions skip padding even in a model with `plain_positions`, so that padding does not shift them."""

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

        def allocate(rows: int, length: int) -> list[Tensor]:
            sizes = rows, n_kv_heads, length, head_dim
            return [self.new_zeros(sizes, dtype, torch.device(device)) for _ in range(n_layers)]

        # One tensor per layer: a compiled step can update a whole tensor in place, but not a slice of a larger one.
        self.keys, self.values = (allocate(batch_size, capacity) for _ in range(2))  # (B, G, capacity, D) each
        self.memory_keys, self.memory_values = (allocate(memory_rows, memory_length) for _ in range(2))
        self._spare: dict[str, list[Tensor]] = {}  # second buffers that `reorder` copies into and then swaps
        self.real = torch.ones(batch_size, capacity, dtype=torch.bool, device=device)  # False = padding
        self.has_padding = False
        self.length = 0
        self.memory_is_ready = False

    @staticmethod
    def new_zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the zeros in which one layer's keys or values are stored; a subclass may allocate them otherwise."""
        return torch.zeros(sizes, dtype=dtype, device=device)

    @property
    def batch_size(self) -> int:
        """Number of sequences in the batch."""
        return self.keys[0].shape[0]

    @property
    def capacity(self) -> int:
        """Number of tokens that self-attention can store per sequence."""
        return self.keys[0].shape[2]

    @property
    def memory_rows(self) -> int:
        """Number of encoder outputs, each shared by batch_size / memory_rows neighboring sequences."""
        return self.memory_keys[0].shape[0]

    @property
    def memory_length(self) -> int:
        """Number of tokens of each encoder output; 0 if there is no encoder."""
        return self.memory_keys[0].shape[2]

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether a forward pass with this cache may be recorded, so that no shape may depend on values."""
        return self.is_fixed or self.is_active is not None

    @property
    def nbytes(self) -> int:
        """Size in bytes of all key and value tensors, at full capacity."""
        stores = self.keys, self.values, self.memory_keys, self.memory_values
        return sum(layer.nbytes for store in stores for layer in store)

    def layer(self, index: int) -> "LayerCache":
        """Return the object through which layer number `index` reads and writes its part of this cache."""
        return LayerCache(SelfSlot(self, index), MemorySlot(self, index))

    def note_real(self, real: Tensor | None, n_new: int) -> Tensor | None:
        """Store which of the next `n_new` tokens are real and which are padding.

        `real` is (B, n_new), True for real tokens; None means that all are real. Returns such a tensor, (B, S), for the
        cached tokens and the new ones together, or None if all are known to be real. Raises ValueError if the new
        tokens do not fit into the capacity.
        """
        self.check_room(n_new)
        if real is not None:
            self.has_padding = True
            self.real[:, self.length : self.length + n_new] = real
        elif self.has_padding:
            self.real[:, self.length : self.length + n_new] = True
        return self.real[:, : self.length + n_new] if self.has_padding else None

    def number_step(self, dtype: torch.dtype, max_len: int | None) -> StepNumbers | None:
        """Note a new token for each sequence, and return its position and mask, if one kernel computes them.

        Otherwise return None and change nothing: the caller then computes them from `note_real`. `dtype` is that of the
        model, and positions are less than `max_len`.
        """
        return None

    def n_keys(self, n_new: int) -> int:
        """Return the number of keys that the next forward pass, with `n_new` tokens, attends to."""
        return self.length + n_new

    def newest(self, keys: Tensor, n_new: int) -> Tensor:
        """Return the entries for the next `n_new` tokens from `keys`, which has one number per key.

        The numbers may be position numbers, for example: (B or 1, S) -> (B or 1, n_new).
        """
        return keys[:, self.length : self.length + n_new]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, G, new, D) to those of layer number `layer`, and return them all, (B, G, S, D)."""
        end = self.length + k.shape[2]
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return keys[:, :, :end], values[:, :, :end]

    def next_place(self, layer: int) -> TokenPlace | None:
        """Return where the next token of each sequence belongs in layer number `layer`; None if `write` must decide."""
        return None

    def write_memory(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the encoder's output, (B, G, S, D), of layer number `layer`, and return them."""
        self.check_memory(k.shape[2])
        self.memory_keys[layer].copy_(k)
        self.memory_values[layer].copy_(v)
        return k, v

    def read_memory(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the encoder's output, (B, G, S, D), of layer number `layer`."""
        return self.memory_keys[layer], self.memory_values[layer]

    def check_room(self, n_new: int) -> None:
        """Raise ValueError unless `n_new` more tokens fit into the capacity."""
        if self.length + n_new > self.capacity:
            raise ValueError(
                f"cache holds {self.length} tokens and {n_new} more were given: "
                f"expected at most capacity={self.capacity} together"
            )

    def check_memory(self, length: int) -> None:
        """Raise ValueError unless `length`, the length of an encoder output, equals this cache's `memory_length`."""
        if length != self.memory_length:
            raise ValueError(f"memory has {length} tokens: expected the cache's memory_length={self.memory_length}")

    def check_layers(self, depth: int) -> None:
        """Raise ValueError unless the cache was made for a stack of `depth` layers."""
        if depth != len(self.keys):
            raise ValueError(f"cache is for {len(self.keys)} layers: expected {depth}, as the stack has")

    def advance(self, n_new: int) -> None:
        """Add `n_new` to the cache's length and mark the encoder's keys and values as written.

        The stack calls this at the end of a forward pass, after every layer has written.
        """
        self.length += n_new
        self.memory_is_ready = self.memory_length > 0

    def reorder(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        """Replace sequence i by sequence `rows[i]`, for every i. Indices may repeat; fewer indices shrink the batch.

        Encoder outputs that belong to one sequence each move with it. Shared encoder outputs stay in place, unless
        `memory_rows` holds the indices of the ones to keep.
        """
        if len(rows) > self.batch_size:
            raise ValueError(f"rows has {len(rows)} entries: expected at most the cache's {self.batch_size} rows")
        if memory_rows is None and self.memory_rows == self.batch_size:
            memory_rows = rows
        n = len(rows)
        moved = find_moved(rows) if memory_rows is rows and not rows.is_cuda else None  # a GPU would be waited for
        if moved is not None:
            self._move_few(moved, rows[moved], n)
            return
        for name in ("keys", "values"):
            store = getattr(self, name)
            spare = self._spare.pop(name, None)
            spare = [torch.empty_like(layer) for layer in store] if spare is None else spare
            for old, new in zip(store, spare, strict=True):  # copies the filled part only
                torch.index_select(old[:, :, : self.length], 0, rows, out=new[:n, :, : self.length])
            setattr(self, name, [layer[:n] for layer in spare])
            self._spare[name] = [layer[:n] for layer in store]
        if memory_rows is not None:
            self.memory_keys = [layer.index_select(0, memory_rows) for layer in self.memory_keys]
            self.memory_values = [layer.index_select(0, memory_rows) for layer in self.memory_values]
        self.real[:n] = self.real.index_select(0, rows)
        self.real = self.real[:n]

    def _move_few(self, to: Tensor, origin: Tensor, n: int) -> None:
        """Copy sequence `origin[i]` to `to[i]` in place, for every i, and keep the first `n` sequences."""
        for name in ("keys", "values", "memory_keys", "memory_values"):
            store = getattr(self, name)
            length = self.memory_length if name.startswith("memory") else self.length
            for layer in store:
                layer[to, :, :length] = layer[origin, :, :length]
            setattr(self, name, [layer[:n] for layer in store])
        self.real[to] = self.real[origin]
        self.real = self.real[:n]

    def first_rows(self, count: int) -> "KVCache":
        """Return a cache of the first `count` sequences that shares this one's memory, to fill with prompts.

        Its length and flags are its own. `repeat_rows` makes the filled part visible here.
        """
        part = copy(self)
        part._spare = {}
        part.keys, part.values = ([layer[:count] for layer in store] for store in (self.keys, self.values))
        part.real = self.real[:count]
        return part

    def repeat_rows(self, filled: "KVCache", copies: int) -> None:
        """Copy each sequence of `filled`, made by `first_rows`, to `copies` neighboring sequences of this cache.

        Copying is in place: addresses do not change, and the only temporary memory is one layer of `filled`. Sequences
        after the last copy keep what they hold.
        """
        rows, length = filled.batch_size, filled.length
        if rows * copies > self.batch_size:
            raise ValueError(f"{rows} rows with {copies} copies each: expected at most the cache's {self.batch_size}")
        self.length, self.has_padding = length, filled.has_padding
        if copies == 1:
            return
        for store in (*self.keys, *self.values, self.real[:, None, :, None]):  # (B, G, capacity, D)
            prompts = store[:rows, :, :length].clone()
            repeated = store[: rows * copies, :, :length].view(rows, copies, *prompts.shape[1:])
            repeated.copy_(prompts[:, None])

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens of each sequence.

        Length 0 also marks the encoder's keys and values as unwritten.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length}: expected 0 to {self.length}, the tokens held")
        self.length = length
        self.memory_is_ready = self.memory_is_ready and length > 0


def find_moved(rows: Tensor) -> Tensor | None:
    """Return the indices i with rows[i] != i; None if they are many, or if one of them is also read."""
    moved = (rows != torch.arange(len(rows))).nonzero()[:, 0]
    is_simple = 2 * len(moved) <= len(rows) and not torch.isin(rows[moved], moved).any()
    return moved if is_simple else None


@dataclass(frozen=True)
class SelfSlot:
    """The self-attention part of a cache for layer number `index`. Each `update` appends keys and values."""

    cache: KVCache
    index: int
    is_complete = False

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values, (B, G, new, D), and return all of them, (B, G, S, D)."""
        return self.cache.write(self.index, k, v)

    def next_place(self) -> TokenPlace | None:
        """Return where the next token of each sequence belongs; None if only `update` can write it."""
        return self.cache.next_place(self.index)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all tokens of finished forward passes, (B, G, S, D)."""
        end = self.cache.length
        return self.cache.keys[self.index][:, :, :end], self.cache.values[self.index][:, :, :end]


@dataclass(frozen=True)
class MemorySlot:
    """The cross-attention part of a cache for layer number `index`.

    The first forward pass writes the keys and values of the encoder's output; later passes only read them.
    """

    cache: KVCache
    index: int

    @property
    def is_complete(self) -> bool:
        """Whether the keys and values of the encoder's output have been written."""
        return self.cache.memory_is_ready

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the encoder's output, (B, G, S, D), and return them."""
        return self.cache.write_memory(self.index, k, v)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the encoder's output, (B, G, S, D)."""
        return self.cache.read_memory(self.index)


@dataclass(frozen=True)
class LayerCache:
    """One layer's access to a `KVCache`: a part for self-attention and a part for cross-attention."""

    self_attn: SelfSlot
    cross_attn: MemorySlot

    @property
    def kernels(self) -> KernelSet:
        """Kernels that decoding steps with this cache use."""
        return self.self_attn.cache.kernels

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether a step with this cache is recorded, so that no shape may depend on values."""
        return self.self_attn.cache.has_fixed_shapes
