"""Products of up to 128 rows with a weight matrix on a GPU, in Triton, and the residual sum and norm after them.

Decoding a batch multiplies a few rows with every matrix of the model. Such a product needs few operations, and most of
its time is the start of a kernel and the way of the matrix through the memory. So there are many programs, each for a
tile of the outputs and a part of the inputs. On GPUs from Hopper on, a kernel is launched while the one before it still
runs, and fetches its weights into the L2 cache before it waits for its input.

The programs for different parts of the inputs write partial sums in float32. The kernel after them adds them up, adds
the bias and the residual, and normalizes the result.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.kernels.kernel_set import ACTIVATIONS, KernelSet, NormWeights
from glassformer.kernels.triton_launch import HAS_TRITON, early_launch, launches_early, on_device
from glassformer.kernels.triton_products import LARGE_MATRIX
from glassformer.kernels.triton_rows import gate_rows, normalize_rows

MAX_ROWS = 128
"""The most rows that a program multiplies."""
TILE = 32
"""The outputs that a program computes."""
MANY_INPUTS = 1024
"""Products with more inputs than this are divided among more programs."""
MAX_PARTS = 4
"""Into how many parts the inputs of a product are divided, at most."""
STAGES, STAGE_BYTES = 6, 150_000
"""The blocks of inputs that a program has on their way at once, and their bytes, at most."""
LINE_BYTES = 128
"""The bytes that one instruction fetches into the L2 cache."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    from glassformer.kernels.triton_products import activated

    @triton.jit
    def _fetch(places):  # type: ignore[no-untyped-def]
        """Fetch the memory at these pointers into the L2 cache, without waiting for it."""
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1
        )

    @triton.jit  # type: ignore[untyped-decorator]
    def _multiply_tile(  # type: ignore[no-untyped-def]
        x, matrix, bias, out, x_r, n_rows, n_outputs,
        n_inputs: tl.constexpr, span: tl.constexpr, room: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
        lines: tl.constexpr, line: tl.constexpr, has_bias: tl.constexpr, activation: tl.constexpr,
        is_gated: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Multiply all rows of x with a tile of the matrix: `tile` outputs, and `span` of the inputs.

        With `is_gated` the matrix has twice as many rows, and the result is act(first half) * second half. `room` is
        the number of rows rounded up to a power of two, `lines` that of the cache lines of `line` numbers in a span.
        """
        part = tl.program_id(1)
        outputs, rows = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, room)
        is_output, is_row = outputs < n_outputs, rows < n_rows
        second = matrix + n_outputs * n_inputs
        at_output = tl.minimum(outputs, n_outputs - 1).to(tl.int64) * n_inputs
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            starts = tl.minimum(part * span + tl.arange(0, lines) * line, n_inputs - 1)
            _fetch(matrix + at_output[:, None] + starts[None, :])
            if is_gated:
                _fetch(second + at_output[:, None] + starts[None, :])
            tl.extra.cuda.gdc_wait()
        sums = tl.zeros([room, tile], tl.float32)
        gates = tl.zeros([room, tile], tl.float32)
        for start in range(0, span, block):
            inputs = part * span + start + tl.arange(0, block)
            if n_inputs % span == 0:
                numbers = tl.load(x + rows[:, None] * x_r + inputs[None, :], mask=is_row[:, None], other=0.0)
                weights = tl.load(matrix + at_output[None, :] + inputs[:, None])
            else:
                is_input = inputs < n_inputs
                is_there = is_row[:, None] & is_input[None, :]
                numbers = tl.load(x + rows[:, None] * x_r + inputs[None, :], mask=is_there, other=0.0)
                weights = tl.load(matrix + at_output[None, :] + inputs[:, None], mask=is_input[:, None], other=0.0)
            sums = tl.dot(numbers, weights, sums)
            if is_gated:
                if n_inputs % span == 0:
                    weights = tl.load(second + at_output[None, :] + inputs[:, None])
                else:
                    weights = tl.load(second + at_output[None, :] + inputs[:, None], mask=is_input[:, None], other=0.0)
                gates = tl.dot(numbers, weights, gates)
        if has_bias:
            sums += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
        sums = activated(sums, activation)
        if is_gated:
            if has_bias:
                gates += tl.load(bias + n_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
            sums *= gates
        at = (part * n_rows + rows)[:, None] * n_outputs + outputs[None, :]
        tl.store(out + at, sums.to(out.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])

    @triton.jit  # type: ignore[untyped-decorator]
    def _add_and_normalize(  # type: ignore[no-untyped-def]
        x, parts, bias, norm_weight, norm_bias, total, out, x_r, part_size, eps,
        n_parts: tl.constexpr, width: tl.constexpr, block: tl.constexpr, centers: tl.constexpr,
        has_bias: tl.constexpr, has_norm: tl.constexpr, has_norm_bias: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Add `n_parts` partial sums and the bias to one row of x (one program each), and normalize the result."""
        row, numbers = tl.program_id(0).to(tl.int64), tl.arange(0, block)
        is_there = numbers < width
        added = tl.zeros([block], tl.float32)
        if has_bias:
            added = tl.load(bias + numbers, mask=is_there, other=0.0).to(tl.float32)
        if has_norm:
            factors = tl.load(norm_weight + numbers, mask=is_there, other=0.0).to(tl.float32)
            if has_norm_bias:
                shifts = tl.load(norm_bias + numbers, mask=is_there, other=0.0).to(tl.float32)
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        for part in tl.static_range(n_parts):
            added += tl.load(parts + part * part_size + row * width + numbers, mask=is_there, other=0.0).to(tl.float32)
        values = tl.load(x + row * x_r + numbers, mask=is_there, other=0.0)
        kind = values.dtype
        rounded = (values.to(tl.float32) + added).to(kind)
        tl.store(total + row * width + numbers, rounded, mask=is_there)
        if has_norm:
            values = rounded.to(tl.float32)
            if centers:
                values = tl.where(is_there, values - tl.sum(values, 0) / width, 0.0)
            values = values / tl.sqrt(tl.sum(values * values, 0) / width + eps) * factors
            if has_norm_bias:
                values += shifts
            tl.store(out + row * width + numbers, values.to(kind), mask=is_there)


class Tiling(NamedTuple):
    """How a product is divided among programs."""

    tile: int
    """The outputs of a program."""
    parts: int
    """Into how many parts the inputs are divided, at most."""
    block: int
    """The inputs that a program reads at once."""
    stages: int
    """The blocks that are on their way at once, at most."""
    warps: int


def multiply_tiles(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, activation: str | None, gated: bool, tiling: Tiling
) -> Tensor:
    """Return act(x weightᵀ + bias) (1, ..., out) for x (..., in), or with several parts (P, ..., out) in float32."""
    n_inputs, n_outputs = x.shape[-1], len(weight) // (2 if gated else 1)
    rows = x.reshape(-1, n_inputs)
    tile, parts, block, stages, warps = tiling
    span = triton.cdiv(triton.cdiv(n_inputs, parts), block) * block
    parts = triton.cdiv(n_inputs, span)
    dtype = x.dtype if parts == 1 else torch.float32
    out = torch.empty(parts, *x.shape[:-1], n_outputs, dtype=dtype, device=x.device)
    line = LINE_BYTES // x.element_size()
    launch: Any = _multiply_tile[(triton.cdiv(n_outputs, tile), parts)]
    with on_device(x.device):
        launch(
            rows, weight, weight if bias is None else bias, out, rows.stride(0), len(rows), n_outputs,
            n_inputs=n_inputs, span=span, room=_room_for(len(rows)), tile=tile, block=block,
            lines=triton.next_power_of_2(triton.cdiv(span, line)), line=line, has_bias=bias is not None,
            activation=ACTIVATIONS.index(activation), is_gated=gated, waits=launches_early(x.device),
            num_stages=stages, num_warps=warps, **early_launch(x.device),
        )  # fmt: skip
    return out


def choose_tiling(n_rows: int, n_outputs: int, n_inputs: int, *, can_be_parts: bool, max_bytes: int) -> Tiling:
    """Return how to divide a product of numbers of two bytes among programs, with up to `max_bytes` of shared memory.

    Measured on an H200 with 16, 64 and 128 rows and matrices of 512 to 3,072 inputs and outputs. `can_be_parts` says
    whether the inputs may be divided, too.
    """
    wanted = 96 if n_inputs > MANY_INPUTS else 64
    parts = max(1, min(MAX_PARTS, wanted // triton.cdiv(n_outputs, TILE))) if can_be_parts else 1
    room, span = _room_for(n_rows), triton.cdiv(n_inputs, parts)
    block = 128 if room <= 64 and span >= 4 * 128 else 64
    blocks = min(STAGES, triton.cdiv(span, block), min(STAGE_BYTES, max_bytes) // (2 * block * (room + TILE)))
    return Tiling(TILE, parts, block, max(1, blocks), 4)


def multiply_many_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    norm: NormWeights | None,
    activation: str | None,
    gated: bool,
    residual: Tensor | None,
) -> Tensor:
    """Return the product of rows x (..., in), as `KernelSet.fused_linear`: by these kernels, or by torch's product.

    Torch's product on a GPU also computes relu and the approximate gelu, if there is a bias.
    """
    if norm is not None:
        x = normalize_rows(x, norm.weight, norm.bias, norm.eps, centers=norm.centers)
    if can_multiply_tiles(x, weight):
        tiling = _tiling_for(x, weight, is_gated=gated, can_be_parts=False)
        y = multiply_tiles(x, weight, bias, activation=activation, gated=gated, tiling=tiling)[0]
    elif x.is_cuda and bias is not None and not gated and activation in ("relu", "gelu_tanh"):
        rows, uses_gelu = x.reshape(-1, x.shape[-1]), activation == "gelu_tanh"
        y = torch._addmm_activation(bias, rows, weight.t(), use_gelu=uses_gelu).view(*x.shape[:-1], -1)
    elif gated and activation == "silu":
        y = gate_rows(*F.linear(x, weight, bias).chunk(2, -1))
    else:
        y = KernelSet().fused_linear(x, weight, bias, activation=activation, gated=gated)
    return y if residual is None else y + residual


def multiply_in_parts(x: Tensor, weight: Tensor) -> Tensor:
    """Return partial sums of x weightᵀ, as `KernelSet.linear_in_parts`."""
    if not can_multiply_tiles(x, weight):
        return F.linear(x, weight)[None]
    tiling = _tiling_for(x, weight, is_gated=False, can_be_parts=True)
    return multiply_tiles(x, weight, None, activation=None, gated=False, tiling=tiling)


def can_multiply_tiles(x: Tensor, weight: Tensor) -> bool:
    """Return whether `multiply_tiles` is faster than torch's product, which is best for float32 and large matrices."""
    return (
        launches_early(x.device)
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.dtype == weight.dtype
        and x.numel() <= MAX_ROWS * x.shape[-1]
        and weight.numel() < LARGE_MATRIX
        and weight.is_contiguous()
        and x.stride(-1) == 1
    )


def _tiling_for(x: Tensor, weight: Tensor, *, is_gated: bool, can_be_parts: bool) -> Tiling:
    n_outputs, n_inputs = weight.shape
    n_rows, max_bytes = x.numel() // n_inputs, _shared_memory(x.device) // (2 if is_gated else 1)
    n_outputs //= 2 if is_gated else 1
    return choose_tiling(n_rows, n_outputs, n_inputs, can_be_parts=can_be_parts, max_bytes=max_bytes)


@cache
def _shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may use."""
    properties = torch.cuda.get_device_properties(device)
    found: int = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    return found


def _room_for(n_rows: int) -> int:
    return max(16, int(triton.next_power_of_2(n_rows)))


def add_and_normalize_rows(
    x: Tensor, parts: Tensor | None, bias: Tensor | None, norm: NormWeights | None
) -> tuple[Tensor, Tensor]:
    """Return x (..., C) + the sum of `parts` (P, ..., C) + bias, and its norm, as `KernelSet.add_and_normalize`."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = total if norm is None else torch.empty_like(total)
    launch: Any = _add_and_normalize[(len(rows),)]
    block = triton.next_power_of_2(width)
    # Triton needs a pointer for every argument; the flags say which of them are read.
    with on_device(x.device):
        launch(
            rows, rows if parts is None else parts, rows if bias is None else bias,
            rows if norm is None else norm.weight, rows if norm is None or norm.bias is None else norm.bias,
            total, out, rows.stride(0), rows.numel(), 0.0 if norm is None else norm.eps,
            n_parts=0 if parts is None else len(parts), width=width, block=block,
            centers=norm is not None and norm.centers, has_bias=bias is not None, has_norm=norm is not None,
            has_norm_bias=norm is not None and norm.bias is not None,
            waits=launches_early(x.device), num_warps=4 if block <= 4096 else 8, **early_launch(x.device),
        )  # fmt: skip
    return total, out
