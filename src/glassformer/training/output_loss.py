"""The loss of an output layer on a GPU: the logits of the whole batch exist once, and become their own gradient.

They have the dtype of the model (`kernels/cross_entropy_kernel.py`). `fused_loss.py` chooses between this and chunks.
A `Float8Output` multiplies in fp8: the logits, and the gradient of its inputs. The gradient of the logits exists a
second time for it, in fp8. The gradient of the weight is a sum over all tokens, and stays in the dtype of the model.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from glassformer.kernels.cross_entropy_kernel import (
    NARROW_SCALE,
    can_use_kernel,
    multiply_in_place,
    replace_by_gradient,
)
from glassformer.kernels.float8_rows import quantize
from glassformer.training.float8_linear import Float8Output, float8_product


def can_replace_logits(hidden: Tensor, weight: Tensor) -> bool:
    """Whether `replaced_logits_loss` can be used: on a GPU in bfloat16 or float32, outside of compiled code.

    Not in float16: the gradient of the sum, before it is divided by the number of tokens, could overflow.
    """
    is_plain = hidden.dtype == weight.dtype and hidden.dtype in (torch.bfloat16, torch.float32)
    is_cast = torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling()
    return is_plain and can_use_kernel(hidden) and not is_cast


def replaced_logits_loss(hidden: Tensor, layer: Any, targets: Tensor, *, smoothing: float, ignored: int) -> Tensor:
    """Return the summed loss of hidden states (N, C) and target ids (N,): `layer`, then smoothed cross-entropy.

    `layer` is a linear layer whose weight may have more rows than `out_features`, as padding.
    """
    in_float8 = isinstance(layer, Float8Output)
    arguments = hidden, layer.weight, layer.bias, targets, layer.out_features, smoothing, ignored, in_float8
    loss: Tensor = OutputLoss.apply(*arguments)  # type: ignore[no-untyped-call]
    return loss


class OutputLoss(torch.autograd.Function):
    """The summed smoothed cross-entropy of `F.linear(inputs, weight, bias)`, with one set of logits in memory."""

    @override
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        answers: Tensor,
        n_classes: int,
        smoothing: float,
        ignored: int,
        in_float8: bool,
    ) -> Tensor:
        """Return the summed loss of inputs (N, C) and answers (N,). `weight` is (W, C) with W >= n_classes."""
        narrow = None
        if in_float8:
            logits = float8_product(*quantize(inputs), *quantize(weight), bias=bias, dtype=inputs.dtype)  # (N, W)
            narrow = torch.empty_like(logits, dtype=torch.float8_e5m2)
        else:
            logits = F.linear(inputs, weight, bias)  # (N, W)
        losses = replace_by_gradient(
            logits, answers, n_classes=n_classes, smoothing=smoothing, ignore=ignored, narrow=narrow
        )
        ctx.save_for_backward(inputs, weight, logits, narrow)
        ctx.has_bias = bias is not None
        ctx.is_trained = weight.requires_grad
        return losses.sum()

    @override
    @staticmethod
    def backward(ctx: Any, *factors: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients. The gradient of the logits was computed in `forward`."""
        inputs, weight, gradient, narrow = ctx.saved_tensors
        (factor,) = factors
        if narrow is None:
            to_inputs = multiply_in_place(gradient @ weight, factor)
        else:
            row_factors = (factor.float() / NARROW_SCALE).expand(len(narrow), 1).contiguous()
            columns = quantize(weight, transposed=True)
            to_inputs = float8_product(narrow, row_factors, *columns, dtype=inputs.dtype, is_long=True)
        to_weight = multiply_in_place(gradient.T @ inputs, factor) if ctx.is_trained else None
        to_bias = (gradient.sum(0, dtype=torch.float32) * factor).to(weight.dtype) if ctx.has_bias else None
        return to_inputs, to_weight, to_bias, None, None, None, None, None
