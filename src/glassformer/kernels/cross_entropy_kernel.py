"""Smoothed cross-entropy and its gradient in one pass over the logits, which the gradient replaces.

The gradient of the summed loss is softmax(logits) minus the smoothed one-hot target: known as soon as the loss is. A
Triton kernel writes it over the logits, so that a training step needs the memory of one set of logits, in the dtype of
the model. `torch.nn.functional.cross_entropy` keeps several, in float32.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.triton_launch import HAS_TRITON, on_device

MAX_LANES, LANE, WARPS = 1 << 9, 8, 16
"""The most lanes of a Triton program, the neighboring logits of a lane, and the warps: the fastest of 24 on an H200."""
MULTIPLY_BLOCK = 1 << 11
"""The numbers that one program of `multiply_in_place` multiplies."""
NARROW_SCALE = 2.0**15
"""The factor of gradients in e5m2. They are between -1 and 1, and the largest number of the format is 57,344."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _add_exponentials(best, total, numbers):  # type: ignore[no-untyped-def]
        """Return the highest logit of each lane, and the sum of exp(logit - highest), with more logits (lanes, n)."""
        higher = tl.maximum(best, tl.max(numbers, 1))
        return higher, total * tl.exp(best - higher) + tl.sum(tl.exp(numbers - higher[:, None]), 1)

    @triton.jit  # type: ignore[untyped-decorator]
    def _replace_by_gradient(  # type: ignore[no-untyped-def]
        logits, targets, losses, narrow, l_n, n_classes, width, smoothing: tl.constexpr, ignore: tl.constexpr,
        narrow_scale: tl.constexpr, lanes: tl.constexpr, lane: tl.constexpr,
    ):  # fmt: skip
        """Write the loss of one row (one program each), and its gradient over the row's logits.

        `l_n` is the stride of a row, `width` the number of its columns. Columns from `n_classes` on are padding. With
        `narrow_scale` above 0, the gradient times this factor is also written to `narrow`, which has no gaps.

        Each lane has its own highest logit and sums, so that no lane waits for another inside the loop. The row is read
        a second time from its end, because its end is still in the cache. Blocks without padding need no mask.
        """
        row = tl.program_id(0).to(tl.int64)
        logits += row * l_n
        narrow += row * width
        columns = tl.arange(0, lanes)[:, None] * lane + tl.arange(0, lane)[None, :]
        block: tl.constexpr = lanes * lane
        target = tl.load(targets + row)
        if target == ignore:
            tl.store(losses + row, 0.0)
            for first in range(0, width, block):
                places = first + columns
                tl.store(logits + places, tl.zeros([lanes, lane], tl.float32), mask=places < width)
                if narrow_scale > 0.0:
                    tl.store(narrow + places, tl.zeros([lanes, lane], tl.float32), mask=places < width)
        else:
            best = tl.full([lanes], -1e30, tl.float32)  # not -inf: the difference of two of them is NaN
            total = tl.zeros([lanes], tl.float32)
            plain = tl.zeros([lanes, lane], tl.float32)
            n_full = n_classes // block
            for index in tl.range(0, n_full, loop_unroll_factor=4):
                at = logits + index * block + columns
                numbers = tl.load(at, eviction_policy="evict_last").to(tl.float32)
                best, total = _add_exponentials(best, total, numbers)
                if smoothing > 0.0:
                    plain += numbers
            rest = n_full * block + columns
            is_there = rest < n_classes
            numbers = tl.load(logits + rest, mask=is_there, other=float("-inf")).to(tl.float32)
            best, total = _add_exponentials(best, total, numbers)
            if smoothing > 0.0:
                plain += tl.where(is_there, numbers, 0.0)
            highest = tl.max(best, 0)
            log_total = highest + tl.log(tl.sum(total * tl.exp(best - highest), 0))
            chosen = tl.load(logits + target).to(tl.float32)
            loss = log_total - (1.0 - smoothing) * chosen
            spread = smoothing / n_classes
            if smoothing > 0.0:
                loss -= spread * tl.sum(tl.sum(plain, 1), 0)
            tl.store(losses + row, loss)
            tl.debug_barrier()  # the target's logit must be read before another thread replaces it
            gradient = tl.where(is_there, tl.exp(numbers - log_total) - spread, 0.0)
            tl.store(logits + rest, gradient, mask=rest < width)
            if narrow_scale > 0.0:
                tl.store(narrow + rest, gradient * narrow_scale, mask=rest < width)
            for first in range(n_full * block + block, width, block):
                places = first + columns  # padding that begins in a later block than the last class
                tl.store(logits + places, tl.zeros([lanes, lane], tl.float32), mask=places < width)
                if narrow_scale > 0.0:
                    tl.store(narrow + places, tl.zeros([lanes, lane], tl.float32), mask=places < width)
            for index in tl.range(0, n_full, loop_unroll_factor=4):
                places = (n_full - 1 - index) * block + columns
                numbers = tl.load(logits + places, eviction_policy="evict_first").to(tl.float32)
                gradient = tl.exp(numbers - log_total) - spread
                tl.store(logits + places, gradient, eviction_policy="evict_first")
                if narrow_scale > 0.0:
                    tl.store(narrow + places, gradient * narrow_scale)
            tl.debug_barrier()  # the target's gradient replaces the one without the target
            of_target = tl.exp(chosen - log_total) - spread - (1.0 - smoothing)
            tl.store(logits + target, of_target)
            if narrow_scale > 0.0:
                tl.store(narrow + target, of_target * narrow_scale)

    @triton.jit  # type: ignore[untyped-decorator]
    def _multiply(x, factor, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """Multiply a block of numbers (one program each) by a number on the device, in place."""
        places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        numbers = tl.load(x + places, mask=places < size, other=0.0).to(tl.float32)
        tl.store(x + places, (numbers * tl.load(factor)).to(x.dtype.element_ty), mask=places < size)


def replace_by_gradient(
    logits: Tensor,
    targets: Tensor,
    *,
    n_classes: int,
    smoothing: float = 0.0,
    ignore: int = -100,
    narrow: Tensor | None = None,
) -> Tensor:
    """Return the smoothed cross-entropy of each row, (N,) in float32, and write its gradient over `logits`, in place.

    Args:
        logits: (N, W), contiguous. Columns from `n_classes` on are padding: they do not count, and their gradient is 0.
        targets: (N,), class ids.
        smoothing: Probability mass that is spread evenly over all classes.
        ignore: Target id whose rows have loss 0 and gradient 0.
        narrow: (N, W), contiguous: a second place for the gradient, times NARROW_SCALE, in e5m2.
    """
    if not can_use_kernel(logits):
        losses = _replace_by_gradient_in_torch(logits, targets, n_classes, smoothing, ignore)
        if narrow is not None:
            narrow.copy_(logits * NARROW_SCALE)
        return losses
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        lanes = min(MAX_LANES, max(1, triton.next_power_of_2(logits.shape[1]) // LANE))
        kernel: Any = _replace_by_gradient[(len(logits),)]
        with on_device(logits.device):
            kernel(
                logits, targets, losses, logits if narrow is None else narrow, logits.stride(0), n_classes,
                logits.shape[1], smoothing, ignore, 0.0 if narrow is None else NARROW_SCALE,
                lanes=lanes, lane=LANE, num_warps=WARPS if lanes == MAX_LANES else 4,
            )  # fmt: skip
    return losses


def multiply_in_place(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply x by a number, a float32 tensor on its device, in place, and return x.

    For narrow dtypes, `mul_` takes four times as long as reading and writing x.
    """
    if not (can_use_kernel(x) and x.is_contiguous() and factor.dtype == torch.float32 and factor.is_cuda):
        return x.mul_(factor)
    if x.numel():
        kernel: Any = _multiply[(triton.cdiv(x.numel(), MULTIPLY_BLOCK),)]
        with on_device(x.device):
            kernel(x, factor, x.numel(), block=MULTIPLY_BLOCK, num_warps=4)
    return x


def can_use_kernel(logits: Tensor) -> bool:
    """Whether the Triton kernel can be used for these logits: on a GPU with Triton, with rows without gaps."""
    return HAS_TRITON and logits.is_cuda and logits.stride(-1) == 1


def _replace_by_gradient_in_torch(
    logits: Tensor, targets: Tensor, n_classes: int, smoothing: float, ignore: int
) -> Tensor:
    numbers = logits[:, :n_classes].float()
    is_counted = targets != ignore
    classes = torch.where(is_counted, targets, 0)[:, None]
    log_p = numbers.log_softmax(-1)
    loss = -(1 - smoothing) * log_p.gather(1, classes)[:, 0] - smoothing * log_p.mean(-1)
    gradient = log_p.exp() - smoothing / n_classes
    gradient.scatter_add_(1, classes, torch.full_like(classes, smoothing - 1, dtype=gradient.dtype))
    logits[:, :n_classes] = gradient * is_counted[:, None]
    logits[:, n_classes:] = 0.0
    return loss * is_counted
