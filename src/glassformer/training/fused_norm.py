"""Norms whose gradients are computed in one pass on a GPU: those around the parts of a layer, and those of stacks.

The gradient of a norm's input, and the sums over all rows that are the gradients of its weight and bias, take
several passes in code of `torch.compile`, and one in `kernels/norm_rows.py`. With post-norm, the residual sum, dropout
and norm are one operation. The results are those of the plain modules up to rounding; dropout draws other random
numbers. `fuse_norms` changes modules of a model from outside. They keep their parameters.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.kernel_set import KernelSet
from glassformer.kernels.norm_rows import N_VALUES, add_and_normalize, norm_gradient
from glassformer.nn import Stack, Sublayer


def fuse_norms(model: nn.Module) -> int:
    """Fuse the gradients of layer norms and RMS norms of a model, in place, and return how many."""
    found = 0
    for module in model.modules():
        if type(module) is Sublayer and module.placement in ("pre", "post") and _can_fuse(module.norm):
            module.__class__ = FusedSublayer
            found += 1
        elif isinstance(module, Stack) and type(module.norm) in (nn.LayerNorm, nn.RMSNorm) and _can_fuse(module.norm):
            module.norm.__class__ = FusedLayerNorm if isinstance(module.norm, nn.LayerNorm) else FusedRMSNorm
            found += 1
    return found


def _can_fuse(norm: Any) -> bool:
    is_known = isinstance(norm, nn.LayerNorm | nn.RMSNorm) and len(norm.normalized_shape) == 1
    return is_known and norm.weight is not None and norm.eps is not None


class FusedSublayer(Sublayer):
    """A residual connection whose norm has a fused gradient. With post-norm, sum, dropout and norm are one pass."""

    @override
    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor], kernels: KernelSet | None = None) -> Tensor:
        if self.placement == "pre":
            kept, y = _normalized(self.norm, x, passes_x=True)
            return kept + self.branch(f(y))
        branch = f(x)
        if self.multiplier != 1.0:
            branch = branch * self.multiplier
        p = self.dropout.p if self.training else 0.0
        seed = torch.randint(N_VALUES, (2,), device=x.device) if p else None
        rows = x.flatten(0, -2), branch.flatten(0, -2)
        out: Tensor = _AddAndNorm.apply(*rows, *_parts(self.norm), seed, p)  # type: ignore[no-untyped-call]
        return out.view(x.shape)


class FusedLayerNorm(nn.LayerNorm):
    """Layer norm with a fused gradient."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        return _normalized(self, input, passes_x=False)[-1]


class FusedRMSNorm(nn.RMSNorm):
    """RMS norm with a fused gradient."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return _normalized(self, x, passes_x=False)[-1]


def _normalized(norm: nn.Module, x: Tensor, *, passes_x: bool) -> list[Tensor]:
    """Return x (..., C), if `passes_x`, and its norm.

    A residual connection adds to the returned x, not to its own: then the gradients of both results are summed in the
    pass that computes the norm's.
    """
    found = _Norm.apply(x.flatten(0, -2), *_parts(norm), passes_x)  # type: ignore[no-untyped-call]
    return [rows.view(x.shape) for rows in found]


def _parts(norm: Any) -> tuple[Tensor, Tensor | None, float, bool]:
    """Return weight, bias and epsilon of a norm, and whether it subtracts the mean."""
    return norm.weight, getattr(norm, "bias", None), norm.eps, isinstance(norm, nn.LayerNorm)


class _Norm(torch.autograd.Function):
    """The norm of x (N, C) by torch, which can compile it together with what comes before; a fused gradient."""

    @staticmethod
    @override
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, is_centered: bool, passes_x: bool
    ) -> tuple[Tensor, ...]:
        """Return x, if `passes_x`, and its norm."""
        if is_centered:
            y, means, scales = torch.native_layer_norm(x, x.shape[1:], weight, bias, eps)
        else:
            y, scales = torch.ops.aten._fused_rms_norm(x, x.shape[1:], weight, eps)
            means = scales  # not used
        ctx.save_for_backward(x, means, scales, weight)
        ctx.has_bias, ctx.is_centered = bias is not None, is_centered
        return (x.view_as(x), y) if passes_x else (y,)

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weight and bias."""
        x, means, scales, weight = ctx.saved_tensors
        gradient, passed = upstream[-1].contiguous(), upstream[0].contiguous() if len(upstream) > 1 else None
        rows = gradient, x, means.flatten().float(), scales.flatten().float(), weight, passed
        of_x, _, sums = norm_gradient(*rows, None, 0.0, ctx.is_centered)
        return of_x, *_parameter_gradients(sums, weight, ctx.has_bias), None, None, None


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        is_centered: bool,
        seed: Tensor | None,
        p: float,
    ) -> Tensor:
        """Return the norm of x + dropout(branch), all (N, C)."""
        total, y, means, scales = add_and_normalize(x, branch, weight, bias, seed, eps, p, is_centered)
        ctx.save_for_backward(total, means, scales, weight, seed)
        ctx.has_bias, ctx.is_centered, ctx.p = bias is not None, is_centered, p
        return y

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, branch, weight and bias."""
        total, means, scales, weight, seed = ctx.saved_tensors
        rows = upstream[0].contiguous(), total, means, scales, weight, None
        of_x, of_branch, sums = norm_gradient(*rows, seed, ctx.p, ctx.is_centered)
        of_parameters = _parameter_gradients(sums, weight, ctx.has_bias)
        return of_x, of_x if seed is None else of_branch, *of_parameters, None, None, None, None


def _parameter_gradients(sums: Tensor, weight: Tensor, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    of_weight, of_bias = sums.sum(0).to(weight.dtype)
    return of_weight, of_bias if has_bias else None
