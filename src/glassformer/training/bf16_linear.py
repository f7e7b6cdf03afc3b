"""Linear layers in bf16 for training on a CPU with AMX: float32 tensors, whose products round their inputs to bfloat16.

Parameters, activations and gradients stay float32, and products are summed in float32. So only matrix products differ
from float32 training. `bf16_matmuls` does that for torch's products. `bf16_linears` is for linear layers, and up to
twice as fast: its kernels write the rounded numbers to the tiles that they multiply, in memory of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from glassformer.kernels.cpu_products import MAX_LAYERS, linear_backward, linear_forward

MIN_ROWS = 16
"""Number of rows from which the kernels are used: tiles have 16 rows."""


@contextmanager
def bf16_matmuls() -> Iterator[None]:
    """Context manager in which torch rounds the inputs of float32 products to bfloat16, on a CPU with AMX.

    torch has this setting once per process, so use it in one thread at a time.
    """
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def are_matmuls_bf16() -> bool:
    """Whether products of float32 matrices on a CPU round their inputs now, as in `bf16_matmuls` on a CPU with AMX."""
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return settings.fp32_precision == "bf16" and torch.cpu._is_amx_tile_supported()


def bf16_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return the result of a linear layer. This replaces its forward pass."""
    found = bf16_linears(x, (layer,))
    return nn.Linear.forward(layer, x) if found is None else found[0]


def bf16_linears(x: Tensor, layers: Sequence[nn.Module]) -> list[Tensor] | None:
    """Return the results of linear layers for one input x (..., C), or None if the kernels cannot compute them."""
    if not _can_multiply(x, layers):
        return None
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    rows: Any = x.reshape(-1, x.shape[-1]), len(layers)
    results = _Bf16Linears.apply(*rows, *weights, *biases)  # type: ignore[no-untyped-call]
    return [result if x.dim() == 2 else result.view(*x.shape[:-1], result.shape[-1]) for result in results]


def is_trained(layer: nn.Module) -> bool:
    """Whether a layer is a linear layer of torch with a weight that is not frozen."""
    return type(layer) is nn.Linear and layer.weight.requires_grad


def _can_multiply(x: Tensor, layers: Sequence[nn.Module]) -> bool:
    if len(layers) > MAX_LAYERS or not all(map(is_trained, layers)):
        return False
    tensors = [x, *(parameter for layer in layers for parameter in layer.parameters())]
    are_float32 = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    has_rows = x.numel() >= MIN_ROWS * x.shape[-1] > 0
    is_cast = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    return are_float32 and has_rows and not is_cast


class _Bf16Linears(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, n_layers: int, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        """Return the results of the layers. `parameters` are all weights and then all biases, or None for each."""
        weights: Any = parameters[:n_layers]
        ctx.save_for_backward(x, *weights)
        ctx.has_biases = [bias is not None for bias in parameters[n_layers:]]
        return tuple(linear_forward(x, weights, parameters[n_layers:]))

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, the weights and the biases."""
        x, *weights = ctx.saved_tensors
        needs_x = ctx.needs_input_grad[0]
        of_x, of_weights, of_biases = linear_backward(upstream, x, weights, ctx.has_biases, needs_x=needs_x)
        return of_x, None, *of_weights, *of_biases
