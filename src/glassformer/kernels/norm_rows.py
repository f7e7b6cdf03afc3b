"""Layer norm and RMS norm in training: the residual sum with dropout before them, and their gradients, in one pass.

Compiled code sums the gradients of weight and bias over all rows in separate passes, and draws a random number with
100 instructions per element of dropout. Here a Triton program reads each row once, and sums the gradients of weight and
bias of its rows on the way. The functions are registered as torch operators, so that compiled code can call them.

Shapes: N rows, C columns, P programs.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.float8_rows import MAX_BLOCK
from glassformer.kernels.triton_launch import HAS_TRITON, on_device

N_PROGRAMS = 1056
"""Number of programs that share the rows of a gradient. Each writes its own sums, in an order that never changes."""
N_VALUES = 2**32
"""Number of values of the random number that decides whether an element is dropped."""
_FACTORS = 0x85EBCA6B, 0xC2B2AE35

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _mix(x):  # type: ignore[no-untyped-def]
        """Return a 32-bit number in which every bit of x has changed about half of the bits."""
        x ^= x >> 16
        x *= 0x85EBCA6B
        x ^= x >> 13
        x *= 0xC2B2AE35
        return x ^ (x >> 16)

    @triton.jit
    def _is_kept(seed, at, n_dropped):  # type: ignore[no-untyped-def]
        """Whether dropout keeps the elements at these places, given two random 32-bit numbers at `seed`."""
        first, second = tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32)
        return _mix(_mix(at.to(tl.uint32) ^ first) ^ second) >= n_dropped.to(tl.uint32)

    @triton.jit  # type: ignore[untyped-decorator]
    def _add_and_normalize(  # type: ignore[no-untyped-def]
        x, branch, weight, bias, seed, total, out, means, scales, width, eps, n_dropped, factor,
        is_centered: tl.constexpr, drops: tl.constexpr, has_bias: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """Add a row of `branch` with dropout to one of x (one program each), and normalize the sum."""
        row = tl.program_id(0).to(tl.int64)
        lanes = tl.arange(0, block)
        is_there = lanes < width
        at = row * width + lanes
        added = tl.load(branch + at, mask=is_there, other=0.0).to(tl.float32)
        if drops:
            added = tl.where(_is_kept(seed, at, n_dropped), added * factor, 0.0)
        added += tl.load(x + at, mask=is_there, other=0.0).to(tl.float32)
        rounded = added.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=is_there)
        number = rounded.to(tl.float32)
        if is_centered:
            mean = tl.sum(number, 0) / width
            tl.store(means + row, mean)
            number = tl.where(is_there, number - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(number * number, 0) / width + eps)
        tl.store(scales + row, scale)
        number *= scale * tl.load(weight + lanes, mask=is_there, other=0.0).to(tl.float32)
        if has_bias:
            number += tl.load(bias + lanes, mask=is_there, other=0.0).to(tl.float32)
        tl.store(out + at, number.to(out.dtype.element_ty), mask=is_there)

    @triton.jit  # type: ignore[untyped-decorator]
    def _norm_gradient(  # type: ignore[no-untyped-def]
        gradient, x, means, scales, weight, passed, seed, out, of_branch, sums, n_rows, width, n_turns, n_dropped,
        factor, is_centered: tl.constexpr, has_passed: tl.constexpr, drops: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """Compute the gradient of a norm's input for a few rows (one program each), and sum those of its parameters.

        `passed` is a gradient that is added. The next row is loaded before the current one is computed.
        """
        lanes = tl.arange(0, block)
        is_lane = lanes < width
        first = tl.program_id(0) * n_turns
        last = tl.minimum(first + n_turns, n_rows)
        by_weight = tl.load(weight + lanes, mask=is_lane, other=0.0).to(tl.float32)
        of_weight, of_bias = tl.zeros([block], tl.float32), tl.zeros([block], tl.float32)
        at = tl.cast(first, tl.int64) * width + lanes
        is_there = is_lane & (first < last)
        next_upstream = tl.load(gradient + at, mask=is_there, other=0.0)
        next_x = tl.load(x + at, mask=is_there, other=0.0)
        next_passed = next_x
        if has_passed:
            next_passed = tl.load(passed + at, mask=is_there, other=0.0)
        for row in range(first, last):
            upstream, number, added = next_upstream.to(tl.float32), next_x.to(tl.float32), next_passed
            at = tl.cast(row, tl.int64) * width + lanes
            is_there = is_lane & (row + 1 < last)
            next_upstream = tl.load(gradient + at + width, mask=is_there, other=0.0)
            next_x = tl.load(x + at + width, mask=is_there, other=0.0)
            if has_passed:
                next_passed = tl.load(passed + at + width, mask=is_there, other=0.0)
            scale = tl.load(scales + row)
            if is_centered:
                number = tl.where(is_lane, number - tl.load(means + row), 0.0)
            number *= scale
            of_weight += upstream * number
            of_bias += upstream
            upstream *= by_weight
            value = upstream - number * (tl.sum(upstream * number, 0) / width)
            if is_centered:
                value -= tl.sum(upstream, 0) / width
            value *= scale
            if has_passed:
                value += added.to(tl.float32)
            tl.store(out + at, value.to(out.dtype.element_ty), mask=is_lane)
            if drops:
                value = tl.where(_is_kept(seed, at, n_dropped), value * factor, 0.0)
                tl.store(of_branch + at, value.to(out.dtype.element_ty), mask=is_lane)
        to = tl.program_id(0).to(tl.int64) * 2 * width + lanes
        tl.store(sums + to, of_weight, mask=is_lane)
        tl.store(sums + to + width, of_bias, mask=is_lane)


@torch.library.custom_op("glassformer::add_and_normalize", mutates_args=())
def add_and_normalize(
    x: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    eps: float,
    p: float,
    is_centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x + dropout(branch) (N, C), its norm, and the mean (N,) and factor (N,) of each row that the norm used.

    Args:
        seed: Two random 32-bit numbers, int64 (2,), which decide what is dropped; None without dropout.
        p: Probability of dropping an element of `branch`.
        is_centered: Whether the norm is a layer norm, which subtracts the mean, or an RMS norm, whose means are 0.
    """
    n_rows, width = x.shape
    scales = x.new_empty(n_rows, dtype=torch.float32)
    means = torch.empty_like(scales) if is_centered else torch.zeros_like(scales)
    drops = seed is not None and p > 0.0
    if not _can_use_kernel(x, branch):
        total = x + (_dropped(branch, seed, p) if drops else branch)
        wide = total.float()
        if is_centered:
            means = wide.mean(1)
        wide = wide - means[:, None]
        scales = (wide.square().mean(1) + eps).rsqrt()
        out = wide * scales[:, None] * weight.float()
        return total, (out if bias is None else out + bias.float()).to(x.dtype), means, scales
    total, out = torch.empty_like(x), torch.empty_like(x)
    kernel: Any = _add_and_normalize[(n_rows,)]
    with on_device(x.device):
        kernel(
            x, branch, weight, weight if bias is None else bias, x if seed is None else seed, total, out, means,
            scales, width, eps, *_dropout_numbers(p), is_centered, drops, bias is not None, **_options(width),
        )  # fmt: skip
    return total, out, means, scales


@torch.library.custom_op("glassformer::norm_gradient", mutates_args=())
def norm_gradient(
    gradient: Tensor,
    x: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    passed: Tensor | None,
    seed: Tensor | None,
    p: float,
    is_centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of a norm's input x (N, C), given that of its output.

    The second result is the same after dropout, the gradient of `branch` in `add_and_normalize`; it is empty without a
    seed. The third are partial sums of the gradients of weight and bias, (P, 2, C).

    Args:
        means: Means (N,) of the rows that the norm used, in float32; an RMS norm uses none.
        scales: Factors (N,) of the rows that the norm used, in float32.
        passed: Gradient of x from elsewhere (N, C), which is added.
    """
    n_rows, width = x.shape
    drops = seed is not None and p > 0.0
    sums = _empty_sums(x)
    if not _can_use_kernel(gradient, x, *([] if passed is None else [passed])):
        unit = (x.float() - means[:, None] if is_centered else x.float()) * scales[:, None]
        sums.zero_()
        sums[0, 0], sums[0, 1] = (gradient.float() * unit).sum(0), gradient.float().sum(0)
        by = gradient.float() * weight.float()
        value = by - unit * (by * unit).mean(1, keepdim=True)
        if is_centered:
            value = value - by.mean(1, keepdim=True)
        value = value * scales[:, None]
        value = (value if passed is None else value + passed.float()).to(x.dtype)
        return value, (_dropped(value, seed, p) if drops else x.new_empty(0, width)), sums
    out, of_branch = torch.empty_like(x), x.new_empty(n_rows if drops else 0, width)
    kernel: Any = _norm_gradient[(N_PROGRAMS,)]
    with on_device(x.device):
        kernel(
            gradient, x, means, scales, weight, x if passed is None else passed, x if seed is None else seed, out,
            of_branch, sums, n_rows, width, -(-n_rows // N_PROGRAMS), *_dropout_numbers(p), is_centered,
            passed is not None, drops, **_options(width),
        )  # fmt: skip
    return out, of_branch, sums


@add_and_normalize.register_fake
def _(
    x: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    eps: float,
    p: float,
    is_centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    means, scales = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x), torch.empty_like(x), means, scales


@norm_gradient.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    passed: Tensor | None,
    seed: Tensor | None,
    p: float,
    is_centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    n_rows, width = x.shape
    drops = seed is not None and p > 0.0
    return torch.empty_like(x), x.new_empty(n_rows if drops else 0, width), _empty_sums(x)


def _dropped(x: Tensor, seed: Tensor | None, p: float) -> Tensor:
    """Return x (N, C) with dropout, in plain torch: the same elements are dropped as by the kernels."""
    assert seed is not None

    def mixed(words: Tensor) -> Tensor:
        for shift, factor in ((16, _FACTORS[0]), (13, _FACTORS[1])):
            words = ((words ^ (words >> shift)) * factor) & (N_VALUES - 1)
        return words ^ (words >> 16)

    words = torch.arange(x.numel(), device=x.device).view(x.shape) & (N_VALUES - 1)
    words = mixed(mixed(words ^ seed[0]) ^ seed[1])
    n_dropped, factor = _dropout_numbers(p)
    return torch.where(words >= n_dropped, x * factor, 0.0).to(x.dtype)


def _dropout_numbers(p: float) -> tuple[int, float]:
    """Return how many of the N_VALUES random numbers drop an element, and the factor of those that are kept."""
    n_dropped = min(round(p * N_VALUES), N_VALUES - 1)
    return n_dropped, N_VALUES / (N_VALUES - n_dropped)


def _can_use_kernel(*tensors: Tensor) -> bool:
    """Whether the kernels can be used for these matrices: on a GPU with Triton, if a row fits a program."""
    first = tensors[0]
    fits = first.shape[1] <= MAX_BLOCK and all(tensor.is_contiguous() for tensor in tensors)
    return HAS_TRITON and first.is_cuda and first.numel() > 0 and fits


def _options(width: int) -> dict[str, int]:
    """Return the size of a row's block, and the number of warps that was the fastest on an H200."""
    block = triton.next_power_of_2(width)
    return {"block": block, "num_warps": max(1, min(16, block // 512))}


def _empty_sums(x: Tensor) -> Tensor:
    return x.new_empty(N_PROGRAMS, 2, x.shape[1], dtype=torch.float32)
