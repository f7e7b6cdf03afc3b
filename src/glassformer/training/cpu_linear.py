"""Linear layers for training on ARM CPUs: the same products, with weights in the layout that is computed fastest.

A linear layer multiplies by its transposed weight. OpenBLAS, which torch uses on ARM, multiplies by a transposed matrix
at 70 to 90 % of its usual speed, while transposing a weight takes much less time than a product of a training batch.
The gradient of the bias is a matrix-vector product here, three to five times as fast as torch's sum over the rows. A
layer's forward and backward pass together are 1.05 to 1.25 times as fast (two Neoverse-N1 cores, widths 128 to 2,048).

The layers of a model are replaced from outside, and only while a training loss is computed (`fast_linears`).
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

MIN_ROWS = 64
"""Number of rows from which a product is worth transposing its weight."""


def is_worthwhile(device: torch.device) -> bool:
    """Whether training on this device is faster with `fast_linears`: it was measured on ARM CPUs only."""
    return device.type == "cpu" and platform.machine() in ("aarch64", "arm64")


@contextmanager
def fast_linears(model: nn.Module) -> Iterator[None]:
    """Context manager in which the `nn.Linear` layers of a model compute with `linear`.

    Parameters, hooks and subclasses of `nn.Linear` are left alone.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of x (..., C_in) and weight (C_out, C_in), as `F.linear`, up to rounding."""
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    is_plain = x.dtype == layer.weight.dtype and x.dim() > 1 and not torch.is_autocast_enabled("cpu")
    if not is_plain or torch.compiler.is_compiling() or x.numel() < MIN_ROWS * x.shape[-1]:
        return nn.Linear.forward(layer, x)
    return linear(x, layer.weight, layer.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x Wᵀ + b, with the weight transposed in memory before the product."""
        ctx.save_for_backward(x, weight)
        rows, transposed = x.flatten(0, -2), weight.t().contiguous()
        result = torch.mm(rows, transposed) if bias is None else torch.addmm(bias, rows, transposed)
        return result if x.dim() == 2 else result.view(*x.shape[:-1], len(weight))

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weight and bias; None for those that are not needed."""
        x, weight = ctx.saved_tensors
        of_rows = upstream[0].flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        of_x = torch.mm(of_rows, weight).view(x.shape) if needs_x else None
        of_weight = torch.mm(of_rows.t(), x.flatten(0, -2)) if needs_weight else None
        ones = of_rows.new_ones(len(of_rows)) if needs_bias else None
        return of_x, of_weight, None if ones is None else torch.mv(of_rows.t(), ones)
