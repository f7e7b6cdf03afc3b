"""The gradient of a gate, act(gate) * up, in one pass over rows that hold both factors side by side.

The kernel reads the factors and the gradient of their product, and writes the gradients of both factors side by side
too, as the product with the joined weights reads them. On an H200 it takes 0.22 ms for 16,384 rows of 2 x 5,632 numbers
in bf16; the memory needs 0.19 ms, and code of `torch.compile` 0.43 ms.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.gradient_rows import ACTIVATIONS, gradient_of, value_of
from glassformer.kernels.triton_launch import HAS_TRITON, on_device

BLOCK, WARPS = 1024, 4
"""Columns of a program, and its warps: a thread reads eight numbers of each matrix at a time, which is 16 bytes."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    from glassformer.kernels.gradient_rows import activate

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate_gradient(  # type: ignore[no-untyped-def]
        gradient, joined, out, width, n_blocks, kind: tl.constexpr, replaces: tl.constexpr, block: tl.constexpr
    ):
        """Write a block of columns of one row (one program each) of both gradients.

        With `replaces`, act(gate) * up is written over its gradient.
        """
        row = (tl.program_id(0) // n_blocks).to(tl.int64)
        columns = (tl.program_id(0) % n_blocks) * block + tl.arange(0, block)
        is_there = columns < width
        at = row * 2 * width + columns
        upstream = tl.load(gradient + row * width + columns, mask=is_there, other=0.0).to(tl.float32)
        gate = tl.load(joined + at, mask=is_there, other=0.0).to(tl.float32)
        up = tl.load(joined + at + width, mask=is_there, other=0.0).to(tl.float32)
        value, slope = activate(gate, kind)
        tl.store(out + at, (upstream * up * slope).to(out.dtype.element_ty), mask=is_there)
        tl.store(out + at + width, (upstream * value).to(out.dtype.element_ty), mask=is_there)
        if replaces:
            hidden = (value * up).to(gradient.dtype.element_ty)
            tl.store(gradient + row * width + columns, hidden, mask=is_there)


@torch.library.custom_op("glassformer::gate_gradient", mutates_args=())
def gate_gradient(gradient: Tensor, joined: Tensor, activation: str) -> Tensor:
    """Return the gradient of gate and up, side by side in `joined` (N, 2 F), given that of act(gate) * up, (N, F).

    `activation` is a key of ACTIVATIONS.
    """
    out = torch.empty_like(joined)
    _write_gradient(gradient, joined, activation, out)
    return out


@torch.library.custom_op("glassformer::exchange_gate_gradient", mutates_args=["gradient", "joined"])
def exchange_gate_gradient(gradient: Tensor, joined: Tensor, activation: str) -> None:
    """Write what `gate_gradient` returns over `joined`, and act(gate) * up over its gradient, in place."""
    _write_gradient(gradient, joined, activation, joined)


@gate_gradient.register_fake
def _(gradient: Tensor, joined: Tensor, activation: str) -> Tensor:
    return torch.empty_like(joined)


@exchange_gate_gradient.register_fake
def _(gradient: Tensor, joined: Tensor, activation: str) -> None:
    return None


def _write_gradient(gradient: Tensor, joined: Tensor, activation: str, out: Tensor) -> None:
    """Write the gradient of gate and up to `out`. If that is `joined`, the product of both replaces its gradient."""
    n_rows, width = gradient.shape
    replaces = out is joined
    if not _can_use_kernel(gradient, joined):
        gate, up = joined.chunk(2, 1)
        hidden, found = value_of(gate, activation) * up, _in_torch(gradient, joined, activation)
        out.copy_(found)
        if replaces:
            gradient.copy_(hidden)
        return
    n_blocks = triton.cdiv(width, BLOCK)
    with on_device(joined.device):
        kernel: Any = _gate_gradient[(n_rows * n_blocks,)]
        kernel(gradient, joined, out, width, n_blocks, ACTIVATIONS[activation], replaces, block=BLOCK, num_warps=WARPS)


def _can_use_kernel(gradient: Tensor, joined: Tensor) -> bool:
    is_dense = gradient.is_contiguous() and joined.is_contiguous()
    return HAS_TRITON and joined.is_cuda and is_dense and joined.numel() > 0


def _in_torch(gradient: Tensor, joined: Tensor, activation: str) -> Tensor:
    gate, up = joined.chunk(2, 1)
    return torch.cat([gradient_of(gradient * up, gate, activation), gradient * value_of(gate, activation)], 1)
