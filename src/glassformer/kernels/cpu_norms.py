"""Residual sum, dropout and norm in training on a CPU, as functions of tensors (`training_norms.h`).

torch makes a pass over memory for each of them, and another one for each of their gradients. The kernels here read and
write each row once. Numbers are float32 on a CPU.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.cpu_training import NORM_CODES, NormName, check_same, drop_rule, training_functions

_INTEGER, _NUMBER, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_ROWS_PER_SUM = 32
"""Rows per partial sum of the gradients of weight and bias. Fixed, so that results do not depend on the threads."""


class _NormCall(ctypes.Structure):
    _fields_ = (
        *((name, _INTEGER) for name in ("rows", "width", "norm")),
        ("eps", _NUMBER),
        *((name, _POINTER) for name in ("x", "branch")),
        *((name, _INTEGER) for name in ("seed", "limit")),
        ("factor", _NUMBER),
        *((name, _POINTER) for name in ("weight", "bias", "total", "y", "of_y", "of_residual")),
        *((name, _POINTER) for name in ("of_total", "of_branch", "sums")),
        *((name, _INTEGER) for name in ("rows_per_sum", "threads")),
    )


class RowNorm(NamedTuple):
    """How rows are normalized: the kind of norm, its epsilon, and its parameters (C)."""

    kind: NormName
    eps: float
    weight: Tensor
    bias: Tensor | None


class BranchRules(NamedTuple):
    """Dropout and multiplier of a branch before it is added to its input."""

    p: float = 0.0
    seed: int = 0
    """Decides which elements are dropped: a signed 64-bit number."""
    multiplier: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether the branch is added as it is."""
        return self.p == 0 and self.multiplier == 1


def normalize_rows(x: Tensor, norm: RowNorm) -> Tensor:
    """Return the norm of rows x (N, C)."""
    return _normalize(x, None, norm, BranchRules())[1]


def add_and_normalize(x: Tensor, branch: Tensor, norm: RowNorm, rules: BranchRules) -> tuple[Tensor, Tensor]:
    """Return total = x + multiplier * dropout(branch), all (N, C), and the norm of total."""
    return _normalize(x, branch, norm, rules)


def norm_gradient(
    of_y: Tensor,
    total: Tensor,
    norm: RowNorm,
    *,
    of_residual: Tensor | None = None,
    rules: BranchRules | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Return the gradients with respect to the sum, the branch, the weight and the bias.

    Args:
        of_y: Gradient of the normalized sum, (N, C).
        total: The sum, of which the norm was computed.
        of_residual: Gradient that reaches the sum through a residual connection instead of the norm. It is added.
        rules: Dropout and multiplier of the branch. None if no gradient of its own is needed: there is no branch, or
            it was added unchanged, so that its gradient is that of the sum.
    """
    given = [of_y, total, *(() if of_residual is None else (of_residual,))]
    check_same(*given)
    of_y, total, *more = (one.contiguous() for one in given)
    call = _call(total, norm, rules or BranchRules())
    call.of_y, call.of_residual = of_y.data_ptr(), more[0].data_ptr() if more else None
    of_total = torch.empty_like(total)
    of_branch = None if rules is None else torch.empty_like(total)
    parts = -(-len(total) // _ROWS_PER_SUM)
    sums = total.new_empty(parts, 2, total.shape[1])
    call.of_total, call.of_branch = of_total.data_ptr(), None if of_branch is None else of_branch.data_ptr()
    call.sums, call.rows_per_sum = sums.data_ptr(), _ROWS_PER_SUM
    training_functions().norm_backward(ctypes.byref(call))
    of_weight, of_bias = sums.sum(0)
    return of_total, of_branch, of_weight, None if norm.bias is None else of_bias


def _normalize(x: Tensor, branch: Tensor | None, norm: RowNorm, rules: BranchRules) -> tuple[Tensor, Tensor]:
    given = [x, *(() if branch is None else (branch,))]
    check_same(*given)
    x, *more = (one.contiguous() for one in given)
    call = _call(x, norm, rules)
    y, total = torch.empty_like(x), x
    call.y = y.data_ptr()
    if more:
        total = torch.empty_like(x)
        call.branch, call.total = more[0].data_ptr(), total.data_ptr()
    training_functions().norm_forward(ctypes.byref(call))
    return total, y


def _call(rows: Tensor, norm: RowNorm, rules: BranchRules) -> _NormCall:
    """Return the call for contiguous rows (N, C). Raises ValueError if the kernels cannot read them or the norm."""
    shape = tuple(rows.shape)
    if len(shape) != 2 or not shape[1]:
        raise ValueError(f"rows {shape}: expected two dimensions, and at least one column")
    for one in (norm.weight, *(() if norm.bias is None else (norm.bias,))):
        is_float32 = one.dtype == torch.float32 and one.device.type == "cpu"
        if tuple(one.shape) != shape[1:] or not one.is_contiguous() or not is_float32:
            found = f"{one.dtype} tensor of shape {tuple(one.shape)}"
            raise ValueError(f"parameter of a norm: {found}: expected contiguous float32 of shape {shape[1:]}")
    if norm.kind not in ("layer", "rms"):
        raise ValueError(f"norm {norm.kind!r}: expected 'layer' or 'rms'")
    limit, scale = drop_rule(rules.p)
    call = _NormCall(*shape, NORM_CODES[norm.kind], norm.eps)
    call.x = call.total = rows.data_ptr()
    call.seed, call.limit, call.factor = rules.seed, limit, scale * rules.multiplier
    call.weight, call.bias = norm.weight.data_ptr(), None if norm.bias is None else norm.bias.data_ptr()
    call.threads = torch.get_num_threads()
    return call
