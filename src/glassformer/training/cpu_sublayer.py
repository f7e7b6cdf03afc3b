"""Residual connections that C++ kernels compute in training on a CPU: dropout, sum and norm in one pass over memory.

With post-norm all of them are one operation. With pre-norm, dropout and sum are one, and the norm's gradient adds the
one that passes by the norm. The results are those of `nn.Sublayer` up to rounding.
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
    norm: Any = sublayer.norm
    is_known = norm_name(norm) is not None and norm.weight is not None and norm.weight.dim() == 1
    return sublayer.placement in ("pre", "post") and is_known and type(sublayer.dropout) is Dropout


def compute_sublayer(sublayer: Sublayer, x: Tensor, f: Callable[[Tensor], Tensor], kernels: Any = None) -> Tensor:
    """Return the result of a residual connection. This replaces its forward pass."""
    if not is_float32(x) or _is_changed(sublayer.norm) or has_hooks(sublayer.dropout):
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


def _is_changed(norm: nn.Module) -> bool:
    """Whether somebody else computes a norm, or watches it."""
    return "forward" in vars(norm) or has_hooks(norm)


def _are_alike(x: Tensor, branch: Tensor) -> bool:
    return branch.shape == x.shape and is_float32(branch)
