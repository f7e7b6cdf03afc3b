"""Linear layers that multiply in eight-bit floating point (`--precision fp8`), for training on a GPU that has it.

A product of fp8 numbers takes about half the time of one in bf16. Each row of a matrix is divided by a factor
(`kernels/float8_rows.py`):

    y = x Wᵀ     rows of x are tokens, rows of W are outputs: both have factors of their rows
    ∂x = ∂y W    rows of ∂y are tokens; W is quantized again, with a factor for each of its columns
    ∂W = ∂yᵀ x   in bf16: its sum runs over the tokens, whose factors differ

`torch.compile` fuses the factors and the conversions with the operations before them: a norm or an activation reads
each row anyway. The parameters stay as they are. `use_float8` puts these layers into a model from outside.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.float8_rows import quantize_rows
from glassformer.models import Model
from glassformer.models.heads import LanguageModelHead
from glassformer.nn import Layer

ALIGNMENT = 16
"""The kernels of fp8 products need numbers of inputs and outputs that are multiples of this."""
MIN_WEIGHTS = 2**20
"""Number of weights from which a layer is computed in fp8. Products of 768 x 768 weights gain no more time than the
conversions of their inputs and gradients take (H200)."""


def has_float8(device: torch.device) -> bool:
    """Whether the device multiplies in fp8: NVIDIA's GPUs of compute capability 8.9 (Ada) or more."""
    is_cuda = device.type == "cuda" and torch.version.hip is None
    return is_cuda and torch.cuda.get_device_capability(device) >= (8, 9)


def use_float8(model: Model) -> int:
    """Let the large linear layers of a model multiply in fp8, in place, and its output layer in the loss.

    Returns the number of layers that do. They keep their parameters.
    """
    found = 0
    for layer in [module for module in model.modules() if isinstance(module, Layer)]:
        for owner in list(layer.modules()):
            for name, linear in list(owner.named_children()):
                if type(linear) is nn.Linear and is_worthwhile(linear.weight):
                    setattr(owner, name, Float8Linear(linear))
                    found += 1
    head = model.head
    if isinstance(head, LanguageModelHead) and is_worthwhile(head.out_proj.weight):
        head.out_proj = Float8Output(head.out_proj)  # type: ignore[assignment]
        found += 1
    return found


def is_worthwhile(weight: Tensor) -> bool:
    """Whether a layer with this weight can be computed in fp8, and is faster so."""
    return weight.numel() >= MIN_WEIGHTS and all(size % ALIGNMENT == 0 for size in weight.shape)


class Float8Linear(nn.Module):
    """A linear layer whose output and input gradient are products of fp8 numbers."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x: (..., in) -> (..., out)."""
        rows: Tensor = _Float8Product.apply(x.flatten(0, -2), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return rows.view(*x.shape[:-1], self.out_features)


class Float8Output(nn.Module):
    """An output layer that the loss computes in fp8 (`output_loss.py`). `forward` does not: it returns plain logits.

    `layer` is an `nn.Linear` or a `PaddedLinear`, whose weight has more rows than `out_features`.
    """

    def __init__(self, layer: Any):
        super().__init__()
        self.out_features = layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits without padding: (..., in) -> (..., out)."""
        return F.linear(x, self.weight, self.bias)[..., : self.out_features]


class _Float8Product(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x Wᵀ + b of x (N, in) and weight (out, in)."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return float8_product(*quantize_rows(x), *quantize_rows(weight), bias=bias, dtype=x.dtype)

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weight and bias."""
        x, weight = ctx.saved_tensors
        gradient = upstream[0]
        of_x = float8_product(*quantize_rows(gradient), *quantize_rows(weight.t()), dtype=x.dtype)
        return of_x, gradient.t() @ x, gradient.sum(0) if ctx.has_bias else None


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None, in_float8: bool) -> Tensor:
    """Return x Wᵀ + b of x (N, in) and weight (out, in), computed in fp8 or in the dtype of x."""
    if in_float8:
        return float8_product(*quantize_rows(x), *quantize_rows(weight), bias=bias, dtype=x.dtype)
    return F.linear(x, weight, bias)


def quantized_product(gradient: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Return the product of a gradient (N, out) in e4m3, with the factors of its rows, and a weight (out, in)."""
    return float8_product(gradient[0], gradient[1], *quantize_rows(weight.t()), dtype=weight.dtype)


def float8_product(
    a: Tensor,
    a_factors: Tensor,
    b: Tensor,
    b_factors: Tensor,
    *,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    is_long: bool = False,
) -> Tensor:
    """Return a bᵀ + bias, (M, N), of quantized matrices a (M, K) and b (N, K) with factors (M, 1) and (N, 1).

    Sums of tens of thousands of products, `is_long`, are added up in float32 in between, which takes more time. On a
    CPU the numbers are multiplied in float32: the same result, up to rounding.
    """
    if not a.is_cuda:
        product = (a.float() * a_factors) @ (b.float() * b_factors).t()
        return (product if bias is None else product + bias.float()).to(dtype)
    options: dict[str, Any] = {"bias": bias, "out_dtype": dtype, "use_fast_accum": not is_long}
    return torch._scaled_mm(a, b.t(), a_factors, b_factors.t(), **options)
