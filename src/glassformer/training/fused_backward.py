"""Layers whose backward pass is fused on a GPU: feed-forward networks and the joined projections of self-attention.

One pass computes the gradient of a large layer, sums it for the bias and quantizes it for fp8
(`kernels/gradient_rows.py`); code of `torch.compile` makes several passes. The results are those of the plain layers up
to rounding. `fuse_backward` changes layers of a model from outside. They keep their parameters.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.float8_rows import quantize_rows
from glassformer.kernels.gradient_rows import ACTIVATIONS, activate_rows, activation_gradient, join_gradients
from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn import FeedForward, Layer, MultiHeadAttention
from glassformer.nn.activations import activation_function
from glassformer.nn.cache import MemorySlot, SelfSlot
from glassformer.nn.multi_head_attention import split_heads
from glassformer.nn.positions import Rotation
from glassformer.training.float8_linear import Float8Linear, float8_product


def fuse_backward(model: nn.Module) -> int:
    """Fuse the backward pass of a model's feed-forward networks and self-attention, in place, and return how many.

    Only feed-forward networks without a gate are changed, and self-attention with joined projections and with neither
    norms nor clipping of queries and keys.
    """
    found = 0
    for layer in [module for module in model.modules() if isinstance(module, Layer)]:
        ffn, attention = layer.ffn, layer.self_attn
        if type(ffn) is FeedForward and _can_fuse_feedforward(ffn):
            ffn.__class__ = FusedFeedForward
            found += 1
        if type(attention) is MultiHeadAttention and _can_fuse_projections(attention):
            attention.__class__ = FusedProjections
            found += 1
    return found


def _can_fuse_feedforward(ffn: FeedForward) -> bool:
    if ffn.gate_up_proj is not None or ffn.gate_proj is not None or ffn.activation not in ACTIVATIONS:
        return False
    return type(ffn.up_proj) is type(ffn.down_proj) and _are_linear(ffn.up_proj, ffn.down_proj)


def _can_fuse_projections(attention: MultiHeadAttention) -> bool:
    has_norm = attention.q_norm is not None or attention.k_norm is not None
    return not has_norm and attention.clip_qkv is None and _are_linear(attention.qkv_proj)


def _are_linear(*linears: Any) -> bool:
    return all(type(linear) in (nn.Linear, Float8Linear) for linear in linears)


class FusedFeedForward(FeedForward):
    """A feed-forward network without a gate, as one operation."""

    @override
    def forward(self, x: Tensor, kernels: KernelSet | None = None) -> Tensor:
        if self.training and self.dropout.p:
            return super().forward(x, kernels)
        up, down = self.up_proj, self.down_proj
        in_float8 = isinstance(up, Float8Linear)
        arguments = up.weight, up.bias, down.weight, down.bias, self.activation, in_float8
        rows: Tensor = _FeedForward.apply(x.flatten(0, -2), *arguments)  # type: ignore[no-untyped-call]
        return rows.view(x.shape)


class FusedProjections(MultiHeadAttention):
    """Multi-head attention whose queries, keys and values are one operation, in self-attention without rotation."""

    @override
    def project(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        rotation: Rotation | None = None,
        cache: SelfSlot | MemorySlot | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if key is not None or value is not None or rotation is not None or cache is not None:
            return super().project(query, key, value, rotation=rotation, cache=cache)
        linear: Any = self.qkv_proj
        narrow = self.n_kv_heads * self.head_dim
        arguments = query.flatten(0, -2), linear.weight, linear.bias, narrow, isinstance(linear, Float8Linear)
        q, k, v = _Projections.apply(*arguments)  # type: ignore[no-untyped-call]
        before = query.shape[:-1]
        heads = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        q, k, v = (split_heads(x.view(*before, -1), n) for x, n in zip((q, k, v), heads, strict=True))
        return q, k, v  # (B, H, T, D), 2 x (B, G, T, D)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        activation: Any,
        in_float8: bool,
    ) -> Tensor:
        """Return down(act(up(x))) of x (N, C) and weights up (F, C) and down (C, F)."""
        before = _linear(x, up, up_bias, in_float8)
        if in_float8:
            hidden, numbers, factors = activate_rows(before, activation)
            out = float8_product(numbers, factors, *quantize_rows(down), bias=down_bias, dtype=x.dtype)
        else:
            hidden = _activated(before, activation)
            out = F.linear(hidden, down, down_bias)
        ctx.save_for_backward(x, before, hidden, up, down)
        ctx.activation, ctx.in_float8 = activation, in_float8
        ctx.has_up_bias, ctx.has_down_bias = up_bias is not None, down_bias is not None
        return out

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weights and biases."""
        x, before, hidden, up, down = ctx.saved_tensors
        (gradient,) = upstream
        of_hidden = _quantized_product(quantize_rows(gradient), down) if ctx.in_float8 else gradient @ down
        of_before, sums, *quantized = activation_gradient(of_hidden, before, ctx.activation, ctx.in_float8)
        of_x = _quantized_product(quantized, up) if ctx.in_float8 else of_before @ up
        of_up_bias = sums.sum(0).to(x.dtype) if ctx.has_up_bias else None
        of_down_bias = gradient.sum(0) if ctx.has_down_bias else None
        return of_x, of_before.t() @ x, of_up_bias, gradient.t() @ hidden, of_down_bias, None, None


class _Projections(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, narrow: int, in_float8: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return x Wᵀ + b of x (N, C) in three parts, the last two of `narrow` columns."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.in_float8 = bias is not None, in_float8
        sizes = [len(weight) - 2 * narrow, narrow, narrow]
        q, k, v = torch.split(_linear(x, weight, bias, in_float8), sizes, -1)
        return q, k, v

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weight and bias."""
        x, weight = ctx.saved_tensors
        q, k, v = (gradient.contiguous() for gradient in upstream)
        joined, sums, *quantized = join_gradients(q, k, v, ctx.in_float8)
        of_x = _quantized_product(quantized, weight) if ctx.in_float8 else joined @ weight
        of_bias = sums.sum(0).to(x.dtype) if ctx.has_bias else None
        return of_x, joined.t() @ x, of_bias, None, None


def _activated(x: Tensor, activation: Any) -> Tensor:
    if activation == "gelu_tanh" and torch.compiler.is_compiling():  # as sigmoid: the compiled tanh is slower
        wide = x.float()
        return (wide * torch.sigmoid(wide * (1.5957691216057308 + 0.07135481282553125 * wide * wide))).to(x.dtype)
    return activation_function(activation)(x)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, in_float8: bool) -> Tensor:
    if in_float8:
        return float8_product(*quantize_rows(x), *quantize_rows(weight), bias=bias, dtype=x.dtype)
    return F.linear(x, weight, bias)


def _quantized_product(gradient: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Return the product of a gradient (N, out) in e4m3, with the factors of its rows, and a weight (out, in)."""
    return float8_product(gradient[0], gradient[1], *quantize_rows(weight.t()), dtype=weight.dtype)
