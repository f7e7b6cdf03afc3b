"""Smoothed cross-entropy and its gradient in one pass over the logits, which the gradient replaces.

The gradient of the summed loss is softmax(logits) minus the smoothed one-hot target: known as soon as the loss is. A
Triton kernel writes it over the logits, so that a training step needs the memory of one set of logits, in the dtype of
the model. `torch.nn.functional.cross_entropy` keeps several, in float32.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.triton_attention import HAS_TRITON, on_device

MAX_BLOCK = 1 << 13
"""The most logits that one Triton program reads at once."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _replace_by_gradient(  # type: ignore[no-untyped-def]
        logits, targets, losses, l_n, n_classes, width, smoothing: tl.constexpr, ignore: tl.constexpr,
        block: tl.constexpr,
    ):  # fmt: skip
        """Write the loss of one row (one program each), and its gradient over the row's logits.

        `l_n` is the stride of a row, `width` the number of its columns. Columns from `n_classes` on are padding. The
        row is read twice; the second time it is still in the cache.
        """
        row = tl.program_id(0).to(tl.int64)
        logits += row * l_n
        lanes = tl.arange(0, block)
        target = tl.load(targets + row)
        if target == ignore:
            tl.store(losses + row, 0.0)
            for first in range(0, width, block):
                places = first + lanes
                tl.store(logits + places, tl.zeros([block], tl.float32), mask=places < width)
        else:
            best = float("-inf")
            total = tl.zeros([block], tl.float32)  # each lane has its own sums
            plain = tl.zeros([block], tl.float32)
            for first in range(0, n_classes, block):
                places = first + lanes
                is_there = places < n_classes
                # Read up to `width`, a multiple of 16, so that each thread reads 16 bytes at once.
                numbers = tl.load(logits + places, mask=places < width, other=float("-inf")).to(tl.float32)
                numbers = tl.where(is_there, numbers, float("-inf"))
                larger = tl.maximum(best, tl.max(numbers, 0))
                total = total * tl.exp(best - larger) + tl.exp(numbers - larger)
                best = larger
                if smoothing > 0.0:
                    plain += tl.where(is_there, numbers, 0.0)
            log_total = best + tl.log(tl.sum(total, 0))
            chosen = tl.load(logits + target).to(tl.float32)
            loss = log_total - (1.0 - smoothing) * chosen
            if smoothing > 0.0:
                loss -= smoothing / n_classes * tl.sum(plain, 0)
            tl.store(losses + row, loss)
            tl.debug_barrier()  # the target's logit must be read before another thread replaces it
            spread = smoothing / n_classes
            for first in range(0, width, block):
                places = first + lanes
                is_there = places < n_classes
                numbers = tl.load(logits + places, mask=places < width, other=float("-inf")).to(tl.float32)
                gradient = tl.exp(numbers - log_total) - spread - tl.where(places == target, 1.0 - smoothing, 0.0)
                tl.store(logits + places, tl.where(is_there, gradient, 0.0), mask=places < width)


def replace_by_gradient(
    logits: Tensor, targets: Tensor, *, n_classes: int, smoothing: float = 0.0, ignore: int = -100
) -> Tensor:
    """Return the smoothed cross-entropy of each row, (N,) in float32, and write its gradient over `logits`, in place.

    Args:
        logits: (N, W), contiguous. Columns from `n_classes` on are padding: they do not count, and their gradient is 0.
        targets: (N,), class ids.
        smoothing: Probability mass that is spread evenly over all classes.
        ignore: Target id whose rows have loss 0 and gradient 0.
    """
    if not can_use_kernel(logits):
        return _replace_by_gradient_in_torch(logits, targets, n_classes, smoothing, ignore)
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        block = min(MAX_BLOCK, triton.next_power_of_2(logits.shape[1]))
        kernel: Any = _replace_by_gradient[(len(logits),)]
        with on_device(logits.device):
            kernel(
                logits, targets, losses, logits.stride(0), n_classes, logits.shape[1],
                smoothing, ignore, block=block, num_warps=8,
            )  # fmt: skip
    return losses


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
