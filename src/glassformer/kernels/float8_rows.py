"""Quantize matrices to eight-bit floating point (e4m3), with one factor for each row or for each column.

e4m3 has three bits of mantissa and a largest number of 448. Each row is divided by a factor of its own, so that its
largest number becomes 448 (Micikevicius et al. 2022). `quantize_rows` is the formula, for `torch.compile` to fuse with
the operations around it. `quantize` computes the same by Triton kernels, outside of compiled code.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.triton_launch import HAS_TRITON, on_device

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
TILE = 64
"""Rows and columns of the tiles that are transposed."""
MAX_BLOCK = 1 << 14
"""The longest row that one Triton program reads."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _quantize_row(  # type: ignore[no-untyped-def]
        x, numbers, factors, width, largest: tl.constexpr, smallest: tl.constexpr, block: tl.constexpr
    ):
        """Quantize one row of a contiguous matrix (one program each)."""
        row = tl.program_id(0).to(tl.int64)
        lanes = tl.arange(0, block)
        values = tl.load(x + row * width + lanes, mask=lanes < width, other=0.0).to(tl.float32)
        factor = tl.maximum(tl.max(tl.abs(values), 0) / largest, smallest)
        tl.store(factors + row, factor)
        tl.store(numbers + row * width + lanes, (values / factor).to(numbers.dtype.element_ty), mask=lanes < width)

    @triton.jit  # type: ignore[untyped-decorator]
    def _quantize_transposed(  # type: ignore[no-untyped-def]
        x, numbers, factors, n_rows, width, tile: tl.constexpr
    ):
        """Divide the columns of x (n_rows, width) by their factors, and write a tile to `numbers` (width, n_rows)."""
        rows = (tl.program_id(0) * tile + tl.arange(0, tile)).to(tl.int64)
        places = (tl.program_id(1) * tile + tl.arange(0, tile)).to(tl.int64)
        is_row, is_place = rows < n_rows, places < width
        factor = tl.load(factors + places, mask=is_place, other=1.0)
        is_there = is_row[:, None] & is_place[None, :]
        values = tl.load(x + rows[:, None] * width + places[None, :], mask=is_there, other=0.0)
        quantized = (values.to(tl.float32) / factor[None, :]).to(numbers.dtype.element_ty)
        tl.store(
            numbers + places[:, None] * n_rows + rows[None, :],
            tl.trans(quantized),
            mask=is_place[:, None] & is_row[None, :],
        )


class QuantizedRows(NamedTuple):
    """A matrix in e4m3, and the factors of its rows."""

    numbers: Tensor  # (N, C)
    factors: Tensor  # (N, 1), float32


def quantize_rows(x: Tensor) -> QuantizedRows:
    """Return x (N, C) in e4m3 with a factor for each row: x is about the product of both.

    A row that is not finite contains NaN afterwards.
    """
    largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True, dtype=torch.float32)
    factors = (largest / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    return QuantizedRows((x / factors).to(E4M3).contiguous(), factors)


def quantize(x: Tensor, *, transposed: bool = False) -> QuantizedRows:
    """Return `quantize_rows(x)`, or of the transposed matrix, by a kernel on a GPU."""
    n_rows, width = x.shape
    can_use_kernel = HAS_TRITON and x.is_cuda and x.is_contiguous() and x.numel() > 0
    if not can_use_kernel or (width > MAX_BLOCK and not transposed):
        return quantize_rows(x.t() if transposed else x)
    smallest = torch.finfo(torch.float32).tiny
    with on_device(x.device):
        if transposed:
            largest = torch.linalg.vector_norm(x, torch.inf, 0, dtype=torch.float32)
            factors = (largest / LARGEST).clamp_min(smallest)[:, None]
            numbers = torch.empty(width, n_rows, dtype=E4M3, device=x.device)
            tiles: Any = _quantize_transposed[(triton.cdiv(n_rows, TILE), triton.cdiv(width, TILE))]
            tiles(x, numbers, factors, n_rows, width, tile=TILE, num_warps=4)
        else:
            factors = torch.empty(n_rows, 1, dtype=torch.float32, device=x.device)
            numbers = torch.empty_like(x, dtype=E4M3)
            rows: Any = _quantize_row[(n_rows,)]
            rows(x, numbers, factors, width, LARGEST, smallest, block=triton.next_power_of_2(width), num_warps=4)
    return QuantizedRows(numbers, factors)
