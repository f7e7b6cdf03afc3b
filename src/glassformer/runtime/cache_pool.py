"""A pool of key-value cache rows, allocated once: texts that start and end at any time each write into their own row.

Every layer has one block of memory for `max_tokens` tokens, divided into rows of equal capacity. A text occupies one
row from its first token on, left-aligned, so that rows of different lengths can take a step together:

    row 0   t t t t t t . . . .      running, 6 tokens
    row 1   t t t . . . . m m m      running, 3 tokens and, at the right end, 3 encoder outputs (encoder-decoders)
    row 2   t t t t t t t t . .      ended; kept until the space is needed, in case a new text begins with these tokens
    row 3   . . . . . . . . . .      free

Nothing moves when a text starts. Running texts must be in the first rows for a step, so when one ends and no other
takes its row, the last running row moves there: one row is copied. A text that needs more than a row's capacity makes
all rows longer, and fewer, while it runs; see `fit`.

`pool_views.py` lets a model read and write some of the rows; `pool_runner.py` computes with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from glassformer.kernels.kernel_registry import PLAIN
from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.tensor_checks import check_positive
from glassformer.runtime.async_readback import upload
from glassformer.runtime.step_runner import TextModel

RowState = Literal["free", "reading", "running", "kept"]


@dataclass(eq=False)
class PoolRow:
    """A row of a `CachePool` and the text that it holds. The row's number changes if its text moves."""

    index: int
    state: RowState = "free"
    length: int = 0
    """The number of tokens whose keys and values are stored."""
    memory_length: int = 0
    """The number of encoder outputs whose keys and values are stored."""
    tokens: list[int] = field(default_factory=list)
    """The tokens of the text. The first `length` of them are stored."""
    last_use: int = 0
    """When the text was last read or extended, as a count that grows; for rows that are kept."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is using the row."""
        return self.state in ("reading", "running")


class CachePool:
    """Key-value cache rows of one model, with space for `max_tokens` tokens in all.

    Args:
        max_rows: The number of rows while no text needs more than `max_tokens` / `max_rows` tokens.
        kernels: Kernels that steps with these rows use.
    """

    def __init__(self, model: TextModel, *, max_rows: int, max_tokens: int, kernels: KernelSet = PLAIN):
        check_positive("max_rows", max_rows)
        if max_tokens < max_rows:
            raise ValueError(f"max_tokens={max_tokens}: expected at least max_rows={max_rows}")
        config, parameter = model.config, next(model.parameters())
        self.max_rows, self.max_tokens = max_rows, max_tokens
        self.kernels = kernels
        self.device = parameter.device
        self._sizes = config.kv_heads, config.head_size
        size = max_tokens * config.kv_heads * config.head_size
        # Zeros, because a masked value counts zero times itself, which is NaN if the memory happens to hold NaN.
        self._storage = [
            torch.zeros(2, size, dtype=parameter.dtype, device=parameter.device) for _ in range(config.n_decoder_layers)
        ]
        self.rows: list[PoolRow] = []
        self.keys: list[Tensor] = []
        """Per layer, (rows, G, capacity, D)."""
        self.values: list[Tensor] = []
        self._clock = 0
        self._divide(max_rows)

    @property
    def capacity(self) -> int:
        """The number of tokens and encoder outputs that one row can hold."""
        return self.keys[0].shape[2]

    @property
    def nbytes(self) -> int:
        """The size of the pool in bytes. It never changes."""
        return sum(block.nbytes for block in self._storage)

    @property
    def n_busy(self) -> int:
        """The number of rows that requests are using."""
        return sum(row.is_busy for row in self.rows)

    def has_room(self, count: int, size: int) -> bool:
        """Return whether `count` more texts of `size` tokens each fit into the rows as they are."""
        return size <= self.capacity and self.n_busy + count <= len(self.rows)

    def fit(self, count: int, size: int, needs: Sequence[int]) -> bool:
        """Make space for `count` more texts of `size` tokens each. If they do not fit, change nothing and return False.

        `needs` are the sizes of the texts that are running or being read. Kept texts give way. The rows keep their
        capacity if the new texts fit into it.
        """
        if self.has_room(count, size):
            return True
        longest = max(size, *needs, self.max_tokens // self.max_rows)
        if longest > self.max_tokens:
            return False
        n_rows = min(self.max_rows, self.max_tokens // longest)
        if self.n_busy + count > n_rows:
            return False
        self._change_capacity(n_rows)
        return True

    def take(self, count: int = 1, *, avoid: PoolRow | None = None) -> list[PoolRow]:
        """Return rows for new texts: free ones first, then those of kept texts that were not used for the longest time.

        `avoid` is taken last. Call `fit` first.
        """
        available = [row for row in self.rows if not row.is_busy]
        available.sort(key=lambda row: (row is avoid, row.state == "kept", row.last_use if row.state == "kept" else 0))
        if len(available) < count:
            raise ValueError(f"{count} rows were asked for: expected at most the {len(available)} that are not in use")
        for row in available[:count]:
            self.free(row)
            row.state = "reading"
        return available[:count]

    def free(self, row: PoolRow) -> None:
        """Forget the text of a row."""
        row.state, row.length, row.memory_length, row.tokens = "free", 0, 0, []

    def keep(self, row: PoolRow) -> None:
        """Keep the text of a row that has ended, until the space is needed."""
        # One slot stays unused: steps with a fixed number of rows write into it (`PoolRunner.step`).
        row.length = min(row.length, len(row.tokens), self.capacity - 1)
        row.tokens = row.tokens[: row.length]
        row.state = "kept" if row.length and not row.memory_length else "free"
        self.touch(row)

    def touch(self, row: PoolRow) -> None:
        """Mark the text of a row as just used."""
        self._clock += 1
        row.last_use = self._clock

    def clear(self, row: PoolRow) -> None:
        """Zero a row, after a text whose numbers were not finite; see the comment in `__init__`."""
        for block in (*self.keys, *self.values):
            block[row.index].zero_()

    def fits(self, model: TextModel, *, max_rows: int, max_tokens: int, kernels: KernelSet) -> bool:
        """Return whether a new pool for these arguments would be like this one."""
        parameter, kept = next(model.parameters()), self._storage[0]
        sizes = max_rows, max_tokens, kernels, parameter.dtype, parameter.device
        return sizes == (self.max_rows, self.max_tokens, self.kernels, kept.dtype, kept.device)

    def reset(self) -> None:
        """Forget all texts. Rows in use are zeroed, because it is not known whether their numbers are finite."""
        with torch.inference_mode():  # the memory may have been allocated there
            for row in self.rows:
                if row.is_busy:
                    self.clear(row)
                self.free(row)
        self._divide(self.max_rows)

    def copy_text(self, source: PoolRow, target: PoolRow, length: int) -> None:
        """Copy the first `length` tokens of a row and its encoder outputs to another row."""
        for block in (*self.keys, *self.values):
            block[target.index, :, :length] = block[source.index, :, :length]
            if source.memory_length:
                first = self.capacity - source.memory_length
                block[target.index, :, first:] = block[source.index, :, first:]
        target.length, target.memory_length = length, source.memory_length
        target.tokens = source.tokens[:length]

    def truncate(self, row: PoolRow, length: int) -> None:
        """Keep only the first `length` tokens of a row's text."""
        row.length, row.tokens = length, row.tokens[:length]

    def compact(self) -> int:
        """Move running rows so that they are the first rows; return their number."""
        running = [row for row in self.rows if row.state == "running"]
        n = len(running)
        gaps = [row for row in self.rows[:n] if row.state != "running"]
        self._swap(gaps, [row for row in running if row.index >= n])
        return n

    def _swap(self, some: Sequence[PoolRow], others: Sequence[PoolRow]) -> None:
        """Swap each row with the row at the same index of `others`, all with one copy per layer.

        The rows of `others` are in use.
        """
        if not some:
            return
        pairs = list(zip(some, others, strict=True))
        moves = [(two, one.index) for one, two in pairs]
        moves += [(one, two.index) for one, two in pairs if one.state != "free"]
        sources = upload([row.index for row, _ in moves], self.device)
        targets = upload([index for _, index in moves], self.device)
        end_of_text = max(row.length for row, _ in moves)
        # The longest text may reach into the place of the longest memory. No slot may change places twice.
        start_of_memory = max(end_of_text, self.capacity - max(row.memory_length for row, _ in moves))
        for block in (*self.keys, *self.values):
            block[targets, :, :end_of_text] = block[sources, :, :end_of_text]
            if start_of_memory < self.capacity:
                block[targets, :, start_of_memory:] = block[sources, :, start_of_memory:]
        for one, two in pairs:
            one.index, two.index = two.index, one.index
            self.rows[one.index], self.rows[two.index] = one, two

    def _divide(self, n_rows: int) -> None:
        """Divide the memory into `n_rows` rows."""
        heads, width = self._sizes
        capacity = self.max_tokens // n_rows
        shape = n_rows, heads, capacity, width
        used = n_rows * heads * capacity * width
        self.keys = [block[0, :used].view(shape) for block in self._storage]
        self.values = [block[1, :used].view(shape) for block in self._storage]
        self.rows = [*self.rows[:n_rows], *(PoolRow(index) for index in range(len(self.rows), n_rows))]

    def _change_capacity(self, n_rows: int) -> None:
        """Divide the memory into `n_rows` rows and copy the texts that are in use. Kept texts are forgotten."""
        for row in self.rows:
            if row.state == "kept":
                self.free(row)
        busy = [row for row in self.rows if row.is_busy]
        gaps = [row for row in self.rows[: len(busy)] if not row.is_busy]
        self._swap(gaps, [row for row in busy if row.index >= len(busy)])
        old_keys, old_values, old_capacity = self.keys, self.values, self.capacity
        self._divide(n_rows)
        # In this order no row is overwritten before it was copied, because row r begins at r times the capacity.
        order = range(len(busy)) if self.capacity < old_capacity else reversed(range(len(busy)))
        for index in order:
            row = self.rows[index]
            for old, new in zip((*old_keys, *old_values), (*self.keys, *self.values), strict=True):
                text = old[index, :, : row.length].clone()
                memory = old[index, :, old_capacity - row.memory_length :].clone()
                new[index, :, : row.length] = text
                new[index, :, self.capacity - row.memory_length :] = memory
