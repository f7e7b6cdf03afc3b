"""Read short prompts on a GPU as CUDA graphs.

To read a few prompts, a GPU computes for a millisecond or two, while Python launches the kernels of all layers for more
than ten. A recorded pass launches them with one call. The number of prompts and of tokens is rounded up to a few sizes,
and each pair of sizes is recorded once.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from glassformer.runtime.async_readback import upload
from glassformer.runtime.cache_pool import CachePool, PoolRow
from glassformer.runtime.cuda_graphs import CaptureError, CudaGraph
from glassformer.runtime.pool_views import RecordedFirstTokens
from glassformer.text.tokenizer import PAD

ROW_SIZES = 1, 4, 16, 64
TOKEN_SIZES = 32, 64, 128, 256, 512
MAX_TOKENS = 8192
"""The most tokens of a recorded pass, with padding."""
MAX_FLOPS = 5e12
"""The most arithmetic of a recorded pass, about 10 ms of an H200. A longer pass keeps the GPU busy anyway, and padding
would make it longer still."""
MAX_RECORDED = 24
"""The most recorded passes that are kept; the least recently used are dropped first."""
Compute = Callable[[Tensor, RecordedFirstTokens, Tensor], Tensor]
"""Reads tokens (N, T) into the rows of a view, and returns the logits (N, V) after the last tokens (N,)."""


def flops_per_token(model: nn.Module) -> float:
    """Return the arithmetic for one token of a text, without attention: two operations per parameter."""
    return 2.0 * sum(parameter.numel() for parameter in model.parameters())


class RecordedReading:
    """Recorded passes that read prompts into empty rows of one pool.

    Args:
        compute: The pass to record.
        token_flops: The arithmetic for one token.
        max_len: The most tokens that the model can read, padding included; None is no limit.
    """

    def __init__(self, pool: CachePool, compute: Compute, token_flops: float, max_len: int | None = None):
        self._pool, self._compute, self._token_flops, self._max_len = pool, compute, token_flops, max_len
        # Not the memory pool of the steps: the logits of a step may still be needed while prompts are read.
        self._graph_pool = torch.cuda.graph_pool_handle() if pool.device.type == "cuda" else None
        self._recorded: OrderedDict[tuple[int, int, int], _RecordedPass] = OrderedDict()
        """The passes by number of rows, number of tokens, and capacity of the pool's rows, which may change."""
        self._can_capture = True

    def read(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]]) -> Tensor | None:
        """Read texts into rows and return the logits (N, V) after each; None if the pass cannot be recorded.

        The logits are valid until prompts are read again.
        """
        sizes = self._sizes(rows, texts)
        if sizes is None:
            return None
        key = *sizes, self._pool.capacity
        if key not in self._recorded:
            self._recorded[key] = _RecordedPass(self._pool, self._compute, *sizes, self._graph_pool)
            if len(self._recorded) > MAX_RECORDED:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(key)
        try:
            return self._recorded[key](rows, texts)
        except CaptureError:  # such as that of a layer of experts, which asks how many tokens each expert gets
            self._can_capture = False
            self._recorded.clear()
            return None

    def _sizes(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]]) -> tuple[int, int] | None:
        """Return the rounded numbers of rows and tokens for some texts; None if the pass should not be recorded."""
        if not self._can_capture or any(row.length or row.memory_length for row in rows):
            return None
        n_rows = next((size for size in ROW_SIZES if size >= len(rows)), None)
        n_tokens = next((size for size in TOKEN_SIZES if size >= max(map(len, texts))), None)
        if n_rows is None or n_tokens is None or not self._is_small(n_rows, n_tokens):
            return None
        return n_rows, n_tokens

    def all_sizes(self) -> list[tuple[int, int]]:
        """Return all pairs of sizes that may be recorded."""
        return [(rows, tokens) for rows in ROW_SIZES for tokens in TOKEN_SIZES if self._is_small(rows, tokens)]

    def _is_small(self, n_rows: int, n_tokens: int) -> bool:
        total = n_rows * n_tokens
        if n_tokens > self._pool.capacity or (self._max_len is not None and n_tokens > self._max_len):
            return False
        return total <= MAX_TOKENS and total * self._token_flops <= MAX_FLOPS

    def clear(self) -> None:
        """Drop all recorded passes, because the model or its parameters were replaced."""
        self._recorded.clear()
        self._can_capture = True


class _RecordedPass:
    """A pass that reads up to `n_rows` prompts of up to `n_tokens` tokens, from buffers to a buffer."""

    def __init__(self, pool: CachePool, compute: Compute, n_rows: int, n_tokens: int, graph_pool: object):
        self._numbers = torch.zeros(n_rows, n_tokens + 2, dtype=torch.long, device=pool.device)
        """The tokens of each prompt, the index of its row in the pool, and that of its last token."""
        self._shape = n_rows, n_tokens
        tokens, rows, last = self._numbers[:, :n_tokens], self._numbers[:, n_tokens], self._numbers[:, n_tokens + 1]
        view = RecordedFirstTokens(pool, rows)
        self._compute: Callable[[], Tensor] = partial(compute, tokens, view, last)
        if graph_pool is not None:
            self._compute = CudaGraph(self._compute, view, (self._numbers,), graph_pool)

    def __call__(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]]) -> Tensor:
        n_rows, n_tokens = self._shape
        numbers = [
            [*text, *[PAD] * (n_tokens - len(text)), row.index, len(text) - 1]
            for row, text in zip(rows, texts, strict=True)
        ]
        numbers += numbers[:1] * (n_rows - len(rows))  # the first prompt again, which writes the same into its row
        self._numbers.copy_(upload(numbers, self._numbers.device))
        return self._compute()[: len(rows)]
