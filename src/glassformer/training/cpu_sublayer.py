"""Residual connections that C++ kernels compute in training on a CPU: dropout, sum and norm in one pass over memory.

With post-norm all of them are one operation. With pre-norm, dropout and sum are one operation, and the norm's backward
pass adds the gradient of the residual connection. The results are those of `nn.Sublayer` up to rounding.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from glassformer.kernels.cpu_norms import BranchRules
from glassformer.nn import Sublayer
from glassformer.nn.dropout import Dropout
from glassformer.training.cpu_functions import (
    AddAndNormalize,
    AddDropped,
    Normalize,
    dropout_seed,
    has_hooks,
    is_float32,
    norm_name,
)


def can_replace_sublayer(sublayer: Sublayer) -> bool:
    """Whether the kernels know the norm of a residual connection and its place."""
    is_replaced = "branch" in vars(sublayer) or "forward" in vars(sublayer.dropout)
    return _is_known(sublayer) and not is_replaced


def compute_sublayer(sublayer: Sublayer, x: Tensor, f: Callable[[Tensor], Tensor], kernels: Any = None) -> Tensor:
    """Return the result of a residual connection. This replaces its forward pass."""
    is_plain = _is_known(sublayer) and not _is_called_itself(sublayer.norm) and not has_hooks(sublayer.dropout)
    if not is_plain or x.dim() < 2 or not is_float32(x, *sublayer.norm.parameters()):
        return Sublayer.forward(sublayer, x, f, kernels)
    norm: Any = sublayer.norm
    parts = norm.weight, getattr(norm, "bias", None), norm_name(norm), norm.eps
    rows = x.flatten(0, -2)
    if sublayer.placement == "post":
        branch = f(x)
        if not _are_alike(x, branch):
            return Sublayer.forward(sublayer, x, lambda _: branch, kernels)
        p = _drop_rate(sublayer)
        rules = BranchRules(p=p, seed=dropout_seed() if p else 0, multiplier=sublayer.multiplier)
        found: Tensor = AddAndNormalize.apply(rows, branch.flatten(0, -2), *parts, rules)  # type: ignore[no-untyped-call]
        return found.view(x.shape)
    kept, y = Normalize.apply(rows, *parts)  # type: ignore[no-untyped-call]
    return _add_branch(sublayer, kept.view(x.shape), f(y.view(x.shape)))


def _add_branch(sublayer: Sublayer, x: Tensor, branch: Tensor) -> Tensor:
    p = _drop_rate(sublayer)
    if not p or sublayer.multiplier != 1 or not _are_alike(x, branch):
        return x + sublayer.branch(branch)
    found: Tensor = AddDropped.apply(x, branch, p, dropout_seed())  # type: ignore[no-untyped-call]
    return found


def _drop_rate(sublayer: Sublayer) -> float:
    return sublayer.dropout.p if sublayer.dropout.training else 0.0


def _is_known(sublayer: Sublayer) -> bool:
    norm: Any = sublayer.norm
    has_name = norm_name(norm) is not None and norm.weight is not None and norm.weight.dim() == 1
    is_whole = has_name and all(parameter.is_contiguous() for parameter in norm.parameters())
    return sublayer.placement in ("pre", "post") and is_whole and type(sublayer.dropout) is Dropout


def _is_called_itself(norm: nn.Module) -> bool:
    """Whether a norm has hooks or a replaced forward pass."""
    return "forward" in vars(norm) or has_hooks(norm)


def _are_alike(x: Tensor, branch: Tensor) -> bool:
    return branch.shape == x.shape and is_float32(branch)
