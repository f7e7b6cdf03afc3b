"""Rows of activations and gradients in training: one pass computes them, sums their columns and quantizes them.

Compiled code reads a large gradient once to compute it, again to sum its columns (the gradient of a bias), and twice to
quantize rows of more than 1,024 numbers. Here a Triton program holds a whole row in registers, and sums the columns of
the rows that it computes. The functions are registered as torch operators, so that compiled code can call them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.kernels.float8_rows import E4M3, LARGEST, MAX_BLOCK, quantize_rows
from glassformer.kernels.triton_launch import HAS_TRITON, on_device

ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}
"""The activations that have kernels, and their numbers there."""
N_PROGRAMS, N_FEW_PROGRAMS = 1024, 528
"""Number of programs that share the rows; fewer are faster where a row is loaded while the one before it is computed.
Each writes its own sums of the columns, in an order that never changes."""
SMALLEST = torch.finfo(torch.float32).tiny

if HAS_TRITON:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    @triton.jit
    def _sigmoid(x):  # type: ignore[no-untyped-def]
        """Return sigmoid(x), with a division that is exact to two bits. The exact one takes as long as the rest."""
        return libdevice.fast_dividef(1.0, 1.0 + tl.exp(-x))

    @triton.jit  # type: ignore[untyped-decorator]
    def activate(x, kind: tl.constexpr):  # type: ignore[no-untyped-def]
        """Return the activation of x, and its derivative."""
        if kind == 0:
            value, slope = tl.maximum(x, 0.0), tl.where(x > 0.0, 1.0, 0.0)
        elif kind == 1:
            share = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
            value, slope = x * share, share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        elif kind == 2:  # 0.5 (1 + tanh(u)) is sigmoid(2 u)
            share = _sigmoid(x * (1.5957691216057308 + 0.07135481282553125 * x * x))
            inner = 1.5957691216057308 + 0.21406443847659376 * x * x
            value, slope = x * share, share + x * share * (1.0 - share) * inner
        else:
            share = _sigmoid(x)
            value, slope = x * share, share + x * share * (1.0 - share)
        return value, slope

    @triton.jit  # type: ignore[untyped-decorator]
    def _activate_rows(  # type: ignore[no-untyped-def]
        x, out, numbers, factors, n_rows, width, n_turns, largest: tl.constexpr, smallest: tl.constexpr,
        kind: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """Write the activations of a few rows (one program each), and quantize them."""
        lanes = tl.arange(0, block)
        first = tl.program_id(0) * n_turns
        for row in range(first, tl.minimum(first + n_turns, n_rows)):
            at = tl.cast(row, tl.int64) * width + lanes
            value, _ = activate(tl.load(x + at, mask=lanes < width, other=0.0).to(tl.float32), kind)
            tl.store(out + at, value.to(out.dtype.element_ty), mask=lanes < width)
            value = tl.where(lanes < width, value, 0.0)
            factor = tl.maximum(tl.max(tl.abs(value), 0) / largest, smallest)
            tl.store(factors + row, factor)
            tl.store(numbers + at, (value * (1.0 / factor)).to(numbers.dtype.element_ty), mask=lanes < width)

    @triton.jit  # type: ignore[untyped-decorator]
    def _activation_gradient(  # type: ignore[no-untyped-def]
        gradient, x, out, sums, numbers, factors, n_rows, width, n_turns, largest: tl.constexpr,
        smallest: tl.constexpr, kind: tl.constexpr, quantizes: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """Multiply a few rows of a gradient (one program each) by the derivatives, sum and quantize them.

        The next row is loaded before the current one is computed.
        """
        lanes = tl.arange(0, block)
        first = tl.program_id(0) * n_turns
        last = tl.minimum(first + n_turns, n_rows)
        total = tl.zeros([block], tl.float32)
        at = tl.cast(first, tl.int64) * width + lanes
        is_there = (lanes < width) & (first < last)
        next_upstream = tl.load(gradient + at, mask=is_there, other=0.0)
        next_x = tl.load(x + at, mask=is_there, other=0.0)
        for row in range(first, last):
            upstream, before = next_upstream, next_x
            at = tl.cast(row, tl.int64) * width + lanes
            is_there = (lanes < width) & (row + 1 < last)
            next_upstream = tl.load(gradient + at + width, mask=is_there, other=0.0)
            next_x = tl.load(x + at + width, mask=is_there, other=0.0)
            _, slope = activate(before.to(tl.float32), kind)
            value = upstream.to(tl.float32) * slope
            total += value
            tl.store(out + at, value.to(out.dtype.element_ty), mask=lanes < width)
            if quantizes:
                factor = tl.maximum(tl.max(tl.abs(value), 0) / largest, smallest)
                tl.store(factors + row, factor)
                tl.store(numbers + at, (value * (1.0 / factor)).to(numbers.dtype.element_ty), mask=lanes < width)
        tl.store(sums + tl.program_id(0).to(tl.int64) * width + lanes, total, mask=lanes < width)

    @triton.jit  # type: ignore[untyped-decorator]
    def _join_rows(  # type: ignore[no-untyped-def]
        q, k, v, out, sums, numbers, factors, n_rows, wide, narrow, n_turns, largest: tl.constexpr,
        smallest: tl.constexpr, quantizes: tl.constexpr, wide_block: tl.constexpr, narrow_block: tl.constexpr,
    ):  # fmt: skip
        """Put a few rows of three matrices side by side (one program each), sum and quantize them."""
        width = wide + 2 * narrow
        lanes, others = tl.arange(0, wide_block), tl.arange(0, narrow_block)
        is_wide, is_narrow = lanes < wide, others < narrow
        first = tl.program_id(0) * n_turns
        q_sum = tl.zeros([wide_block], tl.float32)
        k_sum, v_sum = tl.zeros([narrow_block], tl.float32), tl.zeros([narrow_block], tl.float32)
        kind = out.dtype.element_ty
        for row in range(first, tl.minimum(first + n_turns, n_rows)):
            long_row = tl.cast(row, tl.int64)
            to = long_row * width
            one = tl.load(q + long_row * wide + lanes, mask=is_wide, other=0.0).to(tl.float32)
            two = tl.load(k + long_row * narrow + others, mask=is_narrow, other=0.0).to(tl.float32)
            three = tl.load(v + long_row * narrow + others, mask=is_narrow, other=0.0).to(tl.float32)
            q_sum += one
            k_sum += two
            v_sum += three
            tl.store(out + to + lanes, one.to(kind), mask=is_wide)
            tl.store(out + to + wide + others, two.to(kind), mask=is_narrow)
            tl.store(out + to + wide + narrow + others, three.to(kind), mask=is_narrow)
            if quantizes:
                most = tl.maximum(tl.max(tl.abs(one), 0), tl.maximum(tl.max(tl.abs(two), 0), tl.max(tl.abs(three), 0)))
                factor = tl.maximum(most / largest, smallest)
                tl.store(factors + row, factor)
                share = 1.0 / factor
                e4m3 = numbers.dtype.element_ty
                tl.store(numbers + to + lanes, (one * share).to(e4m3), mask=is_wide)
                tl.store(numbers + to + wide + others, (two * share).to(e4m3), mask=is_narrow)
                tl.store(numbers + to + wide + narrow + others, (three * share).to(e4m3), mask=is_narrow)
        to = tl.program_id(0).to(tl.int64) * width
        tl.store(sums + to + lanes, q_sum, mask=is_wide)
        tl.store(sums + to + wide + others, k_sum, mask=is_narrow)
        tl.store(sums + to + wide + narrow + others, v_sum, mask=is_narrow)


@torch.library.custom_op("glassformer::activate_rows", mutates_args=())
def activate_rows(x: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the activations of x (N, C), and the same in e4m3 with the factor of each row, (N, 1).

    `activation` is a key of ACTIVATIONS.
    """
    n_rows, width = x.shape
    if not _can_use_kernel(x):
        value = value_of(x, activation)
        return value, *quantize_rows(value)
    out, numbers, factors = torch.empty_like(x), *_empty_rows(x, n_rows, width)
    with on_device(x.device):
        kernel: Any = _activate_rows[(N_PROGRAMS,)]
        kernel(
            x, out, numbers, factors, n_rows, width, _n_turns(n_rows), LARGEST, SMALLEST, ACTIVATIONS[activation],
            **_block(width),
        )  # fmt: skip
    return out, numbers, factors


@torch.library.custom_op("glassformer::activation_gradient", mutates_args=())
def activation_gradient(
    gradient: Tensor, x: Tensor, activation: str, quantizes: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradient of x (N, C), given that of its activations, and partial sums of its columns, (P, C).

    The last two are the gradient in e4m3 and the factors of its rows; they are empty unless `quantizes`.
    """
    n_rows, width = x.shape
    if not _can_use_kernel(gradient, x):
        value = gradient_of(gradient, x, activation)
        return value, _partial_sums(value, N_FEW_PROGRAMS), *_quantized_if(quantizes, value)
    out, sums = torch.empty_like(x), _empty_sums(x, width, N_FEW_PROGRAMS)
    numbers, factors = _empty_rows(x, n_rows if quantizes else 0, width)
    options = _block(width)
    if not quantizes:  # the maximum of a row is faster with many warps, the rest with few
        options["num_warps"] = max(4, options["num_warps"] // 4)
    with on_device(x.device):
        kernel: Any = _activation_gradient[(N_FEW_PROGRAMS,)]
        kernel(
            gradient, x, out, sums, numbers, factors, n_rows, width, _n_turns(n_rows, N_FEW_PROGRAMS), LARGEST,
            SMALLEST, ACTIVATIONS[activation], quantizes, **options,
        )  # fmt: skip
    return out, sums, numbers, factors


@torch.library.custom_op("glassformer::join_gradients", mutates_args=())
def join_gradients(q: Tensor, k: Tensor, v: Tensor, quantizes: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return matrices q (N, A), k and v (N, B) side by side, and partial sums of the columns, (P, A + 2 B).

    The last two results are those of `activation_gradient`.
    """
    n_rows, wide, narrow = len(q), q.shape[1], k.shape[1]
    if not _can_use_kernel(q, k, v):
        joined = torch.cat([q, k, v], 1)
        return joined, _partial_sums(joined), *_quantized_if(quantizes, joined)
    out, sums = q.new_empty(n_rows, wide + 2 * narrow), _empty_sums(q, wide + 2 * narrow)
    numbers, factors = _empty_rows(q, n_rows if quantizes else 0, wide + 2 * narrow)
    blocks = triton.next_power_of_2(wide), triton.next_power_of_2(narrow)
    with on_device(q.device):
        kernel: Any = _join_rows[(N_PROGRAMS,)]
        kernel(
            q, k, v, out, sums, numbers, factors, n_rows, wide, narrow, _n_turns(n_rows), LARGEST, SMALLEST, quantizes,
            *blocks, num_warps=max(1, min(16, max(blocks) // (512 if quantizes else 1024))),
        )  # fmt: skip
    return out, sums, numbers, factors


@activate_rows.register_fake
def _(x: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), *_empty_rows(x, *x.shape)


@activation_gradient.register_fake
def _(gradient: Tensor, x: Tensor, activation: str, quantizes: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_rows, width = x.shape
    sums = _empty_sums(x, width, N_FEW_PROGRAMS)
    return torch.empty_like(x), sums, *_empty_rows(x, n_rows if quantizes else 0, width)


@join_gradients.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, quantizes: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_rows, width = q.shape[0], q.shape[1] + k.shape[1] + v.shape[1]
    found = q.new_empty(n_rows, width), _empty_sums(q, width)
    return *found, *_empty_rows(q, n_rows if quantizes else 0, width)


def _can_use_kernel(*tensors: Tensor) -> bool:
    """Whether the kernels can be used for matrices of these kinds: on a GPU with Triton, if a row fits a program."""
    first = tensors[0]
    fits = all(tensor.shape[1] <= MAX_BLOCK and tensor.is_contiguous() for tensor in tensors)
    return HAS_TRITON and first.is_cuda and first.numel() > 0 and fits


def _n_turns(n_rows: int, n_programs: int = N_PROGRAMS) -> int:
    """Return the number of rows of each program."""
    return -(-n_rows // n_programs)


def _block(width: int) -> dict[str, int]:
    """Return the size of a row's block, and the number of warps that was the fastest on an H200."""
    block = triton.next_power_of_2(width)
    return {"block": block, "num_warps": max(4, min(16, block // 256))}


def _empty_sums(x: Tensor, width: int, n_programs: int = N_PROGRAMS) -> Tensor:
    return x.new_empty(n_programs, width, dtype=torch.float32)


def _partial_sums(x: Tensor, n_programs: int = N_PROGRAMS) -> Tensor:
    """Return sums of columns in the form of the kernels: all in the first row."""
    sums = _empty_sums(x, x.shape[1], n_programs).zero_()
    sums[0] = x.sum(0, dtype=torch.float32)
    return sums


def _empty_rows(x: Tensor, n_rows: int, width: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(n_rows, width, dtype=E4M3), x.new_empty(n_rows, 1, dtype=torch.float32)


def _quantized_if(quantizes: bool, x: Tensor) -> tuple[Tensor, Tensor]:
    return quantize_rows(x) if quantizes else _empty_rows(x, 0, x.shape[1])


def value_of(x: Tensor, activation: str) -> Tensor:
    """Return the activation of x in plain torch."""
    if activation in ("relu", "silu"):
        return F.relu(x) if activation == "relu" else F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def gradient_of(gradient: Tensor, x: Tensor, activation: str) -> Tensor:
    """Return the gradient of x, given that of its activation, in plain torch."""
    if activation == "relu":
        return gradient * (x > 0)
    if activation == "silu":
        return torch.ops.aten.silu_backward(gradient, x)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(gradient, x, approximate=approximate)
