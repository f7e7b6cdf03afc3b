"""The loss of a language-model head, computed together with the output layer.

On a GPU, the logits of the whole batch exist once, in the dtype of the model, and become their own gradient
(`kernels/cross_entropy_kernel.py`). Elsewhere, under autocast, and for R-Drop, which compares the predictions of two
passes, the plain functions of `losses.py` are used.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from glassformer.kernels.cross_entropy_kernel import can_use_kernel, replace_by_gradient
from glassformer.models import Model
from glassformer.models.heads import LanguageModelHead
from glassformer.training.losses import summed_loss


def output_loss(
    model: Model, hidden: Tensor, answers: Tensor, *, ignored: int, smoothing: float = 0.0, r_drop: float = 0.0
) -> Tensor:
    """Return the summed training loss of hidden states (..., C) and target ids (...), by the head of `model`.

    Args:
        ignored: Target id, such as padding, whose positions do not count.
        smoothing: Probability mass that is spread evenly over all classes.
        r_drop: Weight of R-Drop's divergence; see `losses.summed_loss`.
    """
    head, n_classes = model.head, model.config.vocab_size
    answers = answers.flatten()
    if isinstance(head, LanguageModelHead) and not r_drop and _is_fused(hidden, head):
        inputs = head.before_projection(hidden).flatten(0, -2)  # (N, C)
        weight, bias = head.out_proj.weight, head.out_proj.bias
        loss: Tensor = OutputLoss.apply(inputs, weight, bias, answers, n_classes, smoothing, ignored)  # type: ignore[no-untyped-call]
        return loss
    logits = model.apply_head(hidden).flatten(0, -2)[:, :n_classes]
    return summed_loss(logits, answers, ignored=ignored, smoothing=smoothing, r_drop=r_drop)


def _is_fused(hidden: Tensor, head: LanguageModelHead) -> bool:
    """Whether `OutputLoss` computes this head's loss: on a GPU in bfloat16 or float32, outside of compiled code.

    Not in float16: the gradient of the sum, before it is divided by the number of tokens, could overflow.
    """
    is_plain = hidden.dtype == head.out_proj.weight.dtype and hidden.dtype in (torch.bfloat16, torch.float32)
    is_cast = torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling()
    return is_plain and can_use_kernel(hidden) and not is_cast


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
    ) -> Tensor:
        """Return the summed loss of inputs (N, C) and answers (N,). `weight` is (W, C) with W >= n_classes."""
        logits = F.linear(inputs, weight, bias)  # (N, W)
        losses = replace_by_gradient(logits, answers, n_classes=n_classes, smoothing=smoothing, ignore=ignored)
        ctx.save_for_backward(inputs, weight, logits)
        ctx.has_bias = bias is not None
        return losses.sum()

    @override
    @staticmethod
    def backward(ctx: Any, *factors: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients. The gradient of the logits was computed in `forward`."""
        inputs, weight, gradient = ctx.saved_tensors
        (factor,) = factors
        to_inputs = (gradient @ weight).mul_(factor)
        to_weight = (gradient.T @ inputs).mul_(factor)
        to_bias = (gradient.sum(0, dtype=torch.float32) * factor).to(weight.dtype) if ctx.has_bias else None
        return to_inputs, to_weight, to_bias, None, None, None, None
