"""The C++ kernels of training on a CPU as functions that autograd can differentiate, and when they can be called."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from glassformer.kernels.cpu_norms import BranchRules, RowNorm, add_and_normalize, norm_gradient, normalize_rows
from glassformer.kernels.cpu_training import (
    AttentionRules,
    HeadNorms,
    NormName,
    add_dropped,
    attend_rows,
    attend_rows_gradient,
    drop_numbers,
    relu_and_drop,
    relu_and_drop_gradient,
    silu_gate,
    silu_gate_gradient,
)


def is_float32(*tensors: Tensor) -> bool:
    """Whether the kernels can read all these tensors now: float32 on a CPU, and not under autocast."""
    are_plain = all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in tensors)
    return are_plain and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()


def has_hooks(module: nn.Module) -> bool:
    """Whether a module, or every module of the process, has forward or backward hooks."""
    forward, backward = module._forward_hooks or module._forward_pre_hooks, module._backward_hooks
    is_watched = bool(forward or backward or module._backward_pre_hooks)
    return is_watched or bool(nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def norm_name(norm: nn.Module | None) -> NormName | None:
    """Return the name by which the kernels know a norm, or None if they do not."""
    if type(norm) not in (nn.LayerNorm, nn.RMSNorm) or norm.eps is None:  # type: ignore[union-attr]
        return None
    return "layer" if isinstance(norm, nn.LayerNorm) else "rms"


def dropout_seed() -> int:
    """Return a seed from torch's generator, so that a repeated layer (checkpointing) drops the same elements."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


class AttendRows(torch.autograd.Function):
    """The attention of projected queries, keys and values."""

    @staticmethod
    @override
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_weight: Tensor | None,
        q_bias: Tensor | None,
        k_weight: Tensor | None,
        k_bias: Tensor | None,
        rules: AttentionRules,
    ) -> Tensor:
        """Return the attention (B, T, H·D) of projected queries, keys and values."""
        ctx.save_for_backward(q, k, v, q_weight, q_bias, k_weight, k_bias)
        ctx.rules = rules
        return attend_rows(q, k, v, rules, HeadNorms(q_weight, q_bias, k_weight, k_bias))

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by queries, keys, values and the parameters of the norms."""
        q, k, v, *norms = ctx.saved_tensors
        of_q, of_k, of_v, of_norms = attend_rows_gradient(upstream[0], q, k, v, ctx.rules, HeadNorms(*norms))
        return of_q, of_k, of_v, *of_norms, None


class SiluGate(torch.autograd.Function):
    """silu(gate) * up."""

    @staticmethod
    @override
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        ctx.save_for_backward(gate, up)
        return silu_gate(gate, up)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by gate and up."""
        return silu_gate_gradient(upstream[0], *ctx.saved_tensors)


class Drop(torch.autograd.Function):
    """Dropout."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, p: float, seed: int) -> Tensor:
        """Return x with elements dropped."""
        ctx.p, ctx.seed = p, seed
        return drop_numbers(x, p, seed)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradient by x: that of the result, with the same elements dropped."""
        return drop_numbers(upstream[0], ctx.p, ctx.seed), None, None


class ReluDropout(torch.autograd.Function):
    """Dropout of relu(x), in place."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, p: float, seed: int) -> Tensor:
        """Return dropout(relu(x)), which replaces x: the linear layer before it does not need its output any more."""
        ctx.mark_dirty(x)
        relu_and_drop(x, p, seed)
        ctx.save_for_backward(x)
        ctx.p = p
        return x

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradient by x, which replaces the one of its result: only this function has that one."""
        (hidden,) = ctx.saved_tensors
        gradient = upstream[0].contiguous()
        relu_and_drop_gradient(gradient, hidden, ctx.p)
        return gradient, None, None


class TiedLookup(torch.autograd.Function):
    """Embedding lookup in a table that is tied to the output layer.

    The gradient is a sparse tensor. autograd adds it to the dense gradient of the output layer, so that no tensor of
    the size of the table has to be filled with zeros.
    """

    @staticmethod
    @override
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        """Return the rows (..., C) of a table (V, C)."""
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return F.embedding(ids, table)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradient by the table."""
        (ids,) = ctx.saved_tensors
        places, rows = ids.reshape(1, -1), upstream[0].reshape(ids.numel(), -1)
        return None, torch.sparse_coo_tensor(places, rows, ctx.shape, check_invariants=False)


class Normalize(torch.autograd.Function):
    """The norm of rows x.

    It also returns x, for a residual connection. So its backward pass gets both gradients and adds them in one pass.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kind: NormName, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return rows x (N, C) and their norm."""
        ctx.save_for_backward(x, weight, bias)
        ctx.kind, ctx.eps = kind, eps
        return x.view_as(x), normalize_rows(x, RowNorm(kind, eps, weight, bias))

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, the weight and the bias."""
        x, *parameters = ctx.saved_tensors
        norm = RowNorm(ctx.kind, ctx.eps, *parameters)
        of_x, _, of_weight, of_bias = norm_gradient(upstream[1], x, norm, of_residual=upstream[0])
        return of_x, of_weight, of_bias, None, None


class AddAndNormalize(torch.autograd.Function):
    """The norm of x + multiplier * dropout(branch)."""

    @staticmethod
    @override
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kind: NormName,
        eps: float,
        rules: BranchRules,
    ) -> Tensor:
        """Return the norm of the sum of rows (N, C)."""
        total, y = add_and_normalize(x, branch, RowNorm(kind, eps, weight, bias), rules)
        ctx.save_for_backward(total, weight, bias)
        ctx.kind, ctx.eps, ctx.rules = kind, eps, rules
        return y

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, the branch, the weight and the bias."""
        total, *parameters = ctx.saved_tensors
        norm, rules = RowNorm(ctx.kind, ctx.eps, *parameters), None if ctx.rules.is_plain else ctx.rules
        of_x, of_branch, *of_norm = norm_gradient(upstream[0], total, norm, rules=rules)
        return of_x, of_x if of_branch is None else of_branch, *of_norm, None, None, None


class AddDropped(torch.autograd.Function):
    """The sum x + dropout(branch)."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, branch: Tensor, p: float, seed: int) -> Tensor:
        """Return the sum of two tensors of one shape."""
        ctx.p, ctx.seed = p, seed
        return add_dropped(x, branch, p, seed)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x and the branch."""
        return upstream[0], drop_numbers(upstream[0], ctx.p, ctx.seed), None, None
