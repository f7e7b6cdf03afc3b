"""The gradient of an embedding table: for each id, the sum of the gradients of the tokens that have it.

The tokens are sorted by id, and the sorted list is divided into chunks of equal length, so that frequent ids do not
make one program slower than the others. A first kernel sums the rows of equal ids inside each chunk, as a product with
a matrix of zeros and ones. A second one joins the sums of ids whose rows lie in several chunks. All sums are in float32
and in an order that never changes. torch's kernels sort 64-bit ids and take two to four times as long on an H200.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.triton_launch import HAS_TRITON, on_device

CHUNK, MAX_BLOCK = 64, 128
"""Sorted tokens and columns of a program of the first kernel."""
TILE = 16
"""Chunks that a program of the second kernel reads at a time."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _ids_at(ids, places, n_tokens):  # type: ignore[no-untyped-def]
        """Return the ids at some places of the sorted list, -1 outside of it. Ids of 16 bits are unsigned."""
        is_there = (places >= 0) & (places < n_tokens)
        found = tl.load(ids + places, mask=is_there, other=0).to(tl.int32)
        if ids.dtype.element_ty == tl.int16:
            found = found & 0xFFFF
        return tl.where(is_there, found, -1)

    @triton.jit  # type: ignore[untyped-decorator]
    def _sum_chunk(  # type: ignore[no-untyped-def]
        gradient, ids, order, out, partial, n_tokens, width, chunk: tl.constexpr, block: tl.constexpr
    ):
        """Sum the rows of equal ids in one chunk (one program each for a block of columns).

        `order` has the row of each sorted token. Sums that other chunks add to are written to `partial`: to row 2 c of
        chunk c if the id's rows begin in an earlier chunk, to row 2 c + 1 if they begin in this one.
        """
        index = tl.program_id(0)
        places = index * chunk + tl.arange(0, chunk)
        columns = tl.program_id(1) * block + tl.arange(0, block)
        is_token, is_column = places < n_tokens, columns < width
        own = _ids_at(ids, places, n_tokens)
        rows = tl.load(order + places, mask=is_token, other=0).to(tl.int64)
        there = is_token[:, None] & is_column[None, :]
        values = tl.load(gradient + rows[:, None] * width + columns[None, :], mask=there, other=0.0)
        is_same = (own[:, None] == own[None, :]).to(values.dtype)
        total = tl.dot(is_same, values, input_precision="ieee")  # each row has the sum of its id
        came_before = own == _ids_at(ids, index * chunk - 1, n_tokens)
        is_shared = came_before | (own == _ids_at(ids, index * chunk + chunk, n_tokens))
        is_first = (places == index * chunk) | (own != _ids_at(ids, places - 1, n_tokens))
        to_out = out + own.to(tl.int64)[:, None] * width + columns[None, :]
        tl.store(to_out, total.to(out.dtype.element_ty), mask=there & (is_first & ~is_shared)[:, None])
        slots = (2 * index + tl.where(came_before, 0, 1)).to(tl.int64)
        to_partial = partial + slots[:, None] * width + columns[None, :]
        tl.store(to_partial, total, mask=there & (is_first & is_shared)[:, None])

    @triton.jit  # type: ignore[untyped-decorator]
    def _join_chunks(  # type: ignore[no-untyped-def]
        ids, out, partial, n_tokens, width, chunk: tl.constexpr, tile: tl.constexpr, block: tl.constexpr
    ):
        """Sum the parts of the last id of a chunk (one program each), if its rows begin here and end in another one."""
        index = tl.program_id(0)
        columns = tl.program_id(1) * block + tl.arange(0, block)
        is_column = columns < width
        own = _ids_at(ids, index * chunk + chunk - 1, n_tokens)
        if (own >= 0) & (own != _ids_at(ids, index * chunk - 1, n_tokens)):
            following = index + 1
            if _ids_at(ids, following * chunk, n_tokens) == own:
                first = (2 * index + 1).to(tl.int64) * width
                total = tl.load(partial + first + columns, mask=is_column, other=0.0)
                while _ids_at(ids, following * chunk, n_tokens) == own:
                    others = following + tl.arange(0, tile)
                    there = (_ids_at(ids, others * chunk, n_tokens) == own)[:, None] & is_column[None, :]
                    at = (2 * others).to(tl.int64)[:, None] * width + columns[None, :]
                    total += tl.sum(tl.load(partial + at, mask=there, other=0.0), 0)
                    following += tile
                to = out + own.to(tl.int64) * width + columns
                tl.store(to, total.to(out.dtype.element_ty), mask=is_column)


@torch.library.custom_op("glassformer::embedding_gradient", mutates_args=())
def embedding_gradient(gradient: Tensor, ids: Tensor, n_ids: int) -> Tensor:
    """Return the gradient (V, C) of a table of `n_ids` rows, given that of the rows (N, C) of `ids` (N,).

    Where a gradient is not finite, other ids of its chunk can become NaN too.
    """
    n_tokens, width = gradient.shape
    if not _can_use_kernel(gradient):
        return torch.ops.aten.embedding_dense_backward(gradient, ids, n_ids, -1, False)
    # A radix sort of 16 bits makes a quarter of the passes of 64. The order of ids does not matter: they may wrap.
    ids, order = ids.to(torch.int16 if n_ids <= 1 << 16 else torch.int32).sort(stable=True)
    out, n_chunks = gradient.new_zeros(n_ids, width), triton.cdiv(n_tokens, CHUNK)
    partial = gradient.new_empty(2 * n_chunks, width, dtype=torch.float32)
    block = max(16, min(MAX_BLOCK, triton.next_power_of_2(width)))
    grid = n_chunks, triton.cdiv(width, block)
    with on_device(gradient.device):
        sum_chunk: Any = _sum_chunk[grid]
        sum_chunk(gradient, ids, order, out, partial, n_tokens, width, chunk=CHUNK, block=block, num_warps=4)
        join_chunks: Any = _join_chunks[grid]
        join_chunks(ids, out, partial, n_tokens, width, chunk=CHUNK, tile=TILE, block=block, num_warps=4)
    return out


@embedding_gradient.register_fake
def _(gradient: Tensor, ids: Tensor, n_ids: int) -> Tensor:
    return gradient.new_empty(n_ids, gradient.shape[1])


def _can_use_kernel(gradient: Tensor) -> bool:
    return HAS_TRITON and gradient.is_cuda and gradient.is_contiguous() and gradient.numel() > 0
