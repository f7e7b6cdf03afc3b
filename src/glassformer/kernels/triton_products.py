"""Products of a few rows with a weight matrix on a GPU, in Triton, each with the norm before and the sum after it.

A decoding step of one text multiplies a vector with every matrix of the model. Such a product takes as long as reading
the matrix, which for small models is less than a kernel launch. So one kernel computes the norm of the input, the
product, the activation or gate, and the residual sum.

On GPUs from Hopper on, a kernel is launched while the one before it still runs (programmatic dependent launch). It
loads its part of the matrix at once and waits before it reads what the kernel before it writes.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import ACTIVATIONS, NormWeights
from glassformer.kernels.triton_launch import HAS_TRITON, early_launch, launches_early, on_device

MAX_TILE, LARGE_TILE = 1 << 14, 1 << 13
"""The most numbers of the matrix that a program holds at once; the second is that of large matrices."""
LARGE_MATRIX = 1 << 22
"""Matrices with as many numbers keep the whole GPU busy, so smaller tiles, which leave it no gaps, are faster."""
NARROW = 1024
"""The kernels multiply several rows faster than torch only up to this width (measured on an H200)."""
MAX_OUTPUTS, MIN_OUTPUTS = 16, 4
"""The most and the fewest outputs that a program computes."""
MIN_PROGRAMS = 144
"""Programs that keep a large GPU busy."""
WARPS, LARGE_WARPS = 4, 8
"""The warps of a program; the second is for large matrices."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def activated(x, activation: tl.constexpr):  # type: ignore[no-untyped-def]
        """Return the activation of x; its number counts `ACTIVATIONS`."""
        if activation == 1:
            x = tl.maximum(x, 0.0)
        elif activation == 2:
            x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
        elif activation == 3:
            inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
            x = x * tl.sigmoid(2.0 * inner)  # 1 + tanh(a) = 2 sigmoid(2a)
        elif activation == 4:
            x = x * tl.sigmoid(x)
        return x

    @triton.jit  # type: ignore[untyped-decorator]
    def _load_tile(  # type: ignore[no-untyped-def]
        matrix, outputs, inputs, n_outputs, n_inputs: tl.constexpr
    ):
        """Load rows `outputs` and columns `inputs` of a contiguous matrix."""
        is_there = (outputs < n_outputs)[:, None] & (inputs < n_inputs)[None, :]
        return tl.load(matrix + outputs.to(tl.int64)[:, None] * n_inputs + inputs[None, :], mask=is_there, other=0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _multiply_rows(  # type: ignore[no-untyped-def]
        x, norm_weight, norm_bias, matrix, bias, residual, out, x_r, r_r, o_r, n_outputs, eps,
        n_rows: tl.constexpr, n_inputs: tl.constexpr, row_block: tl.constexpr, block: tl.constexpr,
        tile: tl.constexpr, norm: tl.constexpr, has_norm_bias: tl.constexpr, has_bias: tl.constexpr,
        activation: tl.constexpr, is_gated: tl.constexpr, has_residual: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Compute act(norm(x) matrixᵀ + bias) + residual for `tile` of the outputs, for `multiply_rows`.

        `norm` is 0 for none, 1 for the RMS norm, 2 for the layer norm. With `is_gated` the matrix has twice as many
        rows, and the result is act(first half) * second half. `block` columns of the matrix are read at a time;
        `row_block` is `n_inputs` rounded up to a power of two. `x_r` and the like are strides from row to row.
        """
        outputs = tl.program_id(0) * tile + tl.arange(0, tile)
        is_output = outputs < n_outputs
        columns = tl.arange(0, block)
        second = matrix + n_outputs * n_inputs
        first_tile = _load_tile(matrix, outputs, columns, n_outputs, n_inputs)
        if is_gated:
            second_tile = _load_tile(second, outputs, columns, n_outputs, n_inputs)
        if has_bias:
            first_bias = tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
            if is_gated:
                second_bias = tl.load(bias + n_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        for row in tl.static_range(n_rows):
            mean, factor = 0.0, 1.0
            if norm > 0:
                every = tl.arange(0, row_block)
                whole = tl.load(x + row * x_r + every, mask=every < n_inputs, other=0.0).to(tl.float32)
                if norm == 2:
                    mean = tl.sum(whole, 0) / n_inputs
                    whole = tl.where(every < n_inputs, whole - mean, 0.0)
                factor = 1.0 / tl.sqrt(tl.sum(whole * whole, 0) / n_inputs + eps)
            result = tl.zeros([tile], tl.float32)
            gate = tl.zeros([tile], tl.float32)
            for start in tl.static_range(0, n_inputs, block):
                at = start + columns
                is_input = at < n_inputs
                part = tl.load(x + row * x_r + at, mask=is_input, other=0.0)
                kind = part.dtype
                part = part.to(tl.float32)
                if norm > 0:
                    part = (part - mean) * factor
                    part *= tl.load(norm_weight + at, mask=is_input, other=0.0).to(tl.float32)
                    if has_norm_bias:
                        part += tl.load(norm_bias + at, mask=is_input, other=0.0).to(tl.float32)
                    part = part.to(kind).to(tl.float32)  # rounded as the result of a norm module
                numbers = first_tile if start == 0 else _load_tile(matrix, outputs, at, n_outputs, n_inputs)
                result += tl.sum(numbers.to(tl.float32) * part[None, :], 1)
                if is_gated:
                    numbers = second_tile if start == 0 else _load_tile(second, outputs, at, n_outputs, n_inputs)
                    gate += tl.sum(numbers.to(tl.float32) * part[None, :], 1)
            if has_bias:
                result += first_bias
            result = activated(result, activation)
            if is_gated:
                if has_bias:
                    gate += second_bias
                result *= gate
            if has_residual:
                result += tl.load(residual + row * r_r + outputs, mask=is_output, other=0.0).to(tl.float32)
            tl.store(out + row * o_r + outputs, result.to(out.dtype.element_ty), mask=is_output)


def multiply_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    norm: NormWeights | None,
    activation: str | None,
    gated: bool,
    residual: Tensor | None,
) -> Tensor:
    """Return the product of a few rows x (..., in), as `KernelSet.fused_linear`."""
    n_inputs, n_outputs = x.shape[-1], len(weight) // (2 if gated else 1)
    rows = x.reshape(-1, n_inputs)
    added = None if residual is None else residual.reshape(-1, n_outputs)
    out = torch.empty(len(rows), n_outputs, dtype=x.dtype, device=x.device)
    tile, block = choose_tile(n_outputs * (2 if gated else 1), n_inputs, x.element_size())
    launch: Any = _multiply_rows[(triton.cdiv(n_outputs, tile),)]
    # Triton needs a pointer for every argument; the flags say which of them are read.
    with on_device(x.device):
        launch(
            rows,
            rows if norm is None else norm.weight,
            rows if norm is None or norm.bias is None else norm.bias,
            weight,
            weight if bias is None else bias,
            rows if added is None else added,
            out,
            rows.stride(0),
            0 if added is None else added.stride(0),
            out.stride(0),
            n_outputs,
            0.0 if norm is None else norm.eps,
            n_rows=len(rows),
            n_inputs=n_inputs,
            row_block=triton.next_power_of_2(n_inputs),
            block=block,
            tile=tile,
            norm=0 if norm is None else 1 + norm.centers,
            has_norm_bias=norm is not None and norm.bias is not None,
            has_bias=bias is not None,
            activation=ACTIVATIONS.index(activation),
            is_gated=gated,
            has_residual=added is not None,
            waits=launches_early(x.device),
            num_warps=LARGE_WARPS if weight.numel() >= LARGE_MATRIX else WARPS,
            **early_launch(x.device),
        )
    return out.view(*x.shape[:-1], n_outputs)


def max_fused_rows(x: Tensor) -> int:
    """Return up to how many rows like x (..., C) are multiplied faster by these kernels than by torch's."""
    if x.shape[-1] > NARROW:
        return 1
    return 8 if x.dtype == torch.float32 else 4


def choose_tile(n_outputs: int, n_inputs: int, n_bytes: int) -> tuple[int, int]:
    """Return how many outputs a program computes, and how many columns of the matrix it reads at a time.

    `n_bytes` is the size of a number. A whole tile is in flight at once, so one program holds at most `MAX_TILE`
    numbers of two bytes. There are enough programs to keep a GPU busy.
    """
    most = (LARGE_TILE if n_outputs * n_inputs >= LARGE_MATRIX else MAX_TILE) * 2 // max(n_bytes, 2)
    block = min(triton.next_power_of_2(n_inputs), most // MIN_OUTPUTS)
    tile = MAX_OUTPUTS
    while tile > MIN_OUTPUTS and (tile * block > most or n_outputs < tile * MIN_PROGRAMS):
        tile //= 2
    return tile, block
