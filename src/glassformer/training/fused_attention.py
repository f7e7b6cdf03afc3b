"""Attention layers that are one operation with their input projections on a GPU, forward and backward.

Sequences of up to `max_length` tokens are computed by the kernels of `kernels/short_attention.py`, whose gradients have
the form that the joined projections need: side by side, with the sums for the biases. For longer ones, and for
attention with a score bias, grouped heads or dropout of weights, only the joined projections of self-attention are
fused. With rotary positions nothing is fused. The results are those of the plain layers up to rounding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.float8_rows import quantize_rows
from glassformer.kernels.gradient_rows import join_gradients
from glassformer.kernels.short_attention import (
    max_length,
    short_attention,
    short_cross_attention_gradient,
    short_self_attention_gradient,
)
from glassformer.nn import Layer, Mask, MultiHeadAttention
from glassformer.nn.cache import MemorySlot, SelfSlot
from glassformer.nn.multi_head_attention import split_heads
from glassformer.nn.positions import Rotation
from glassformer.training.float8_linear import Float8Linear, linear_rows, quantized_product


def fuse_attention(layer: Layer) -> int:
    """Fuse the self-attention and cross-attention of a layer, in place, and return how many of them were.

    Only attention with joined projections (`compute_copy.py`) is changed, with neither norms nor clipping of queries
    and keys.
    """
    own, cross = layer.self_attn, layer.cross_attn
    found = 0
    if type(own) is MultiHeadAttention and _can_fuse(own, own.qkv_proj):
        own.__class__ = FusedSelfAttention
        own.max_length = _max_length(own, own.qkv_proj)  # type: ignore[assignment]
        found += 1
    if type(cross) is MultiHeadAttention and _can_fuse(cross, cross.q_proj, cross.kv_proj):
        length = _max_length(cross, cross.q_proj)
        if length:
            cross.__class__ = FusedCrossAttention
            cross.max_length = length  # type: ignore[assignment]
            found += 1
    return found


def _can_fuse(attention: MultiHeadAttention, *projections: Any) -> bool:
    has_norm = attention.q_norm is not None or attention.k_norm is not None
    are_linear = all(type(linear) in (nn.Linear, Float8Linear) for linear in projections)
    return not has_norm and attention.clip_qkv is None and are_linear


def _max_length(attention: MultiHeadAttention, linear: Any) -> int:
    """Return the most queries and keys that the kernels of short attention compute for this layer."""
    attend = attention.attend
    if attention.n_kv_heads != attention.n_heads or attend.softcap is not None or attend.backend != "sdpa":
        return 0
    return max_length(linear.weight.device, attention.head_dim)


class _Rules(NamedTuple):
    """Which keys a query may attend to, in the form of the kernels of short attention."""

    real: Tensor | None
    causal: bool


def _rules(attention: MultiHeadAttention, mask: Mask | None) -> _Rules | None:
    """Return the rules of a mask, or None if the kernels cannot compute this attention."""
    attend = attention.attend
    if attend.training and attend.dropout:
        return None
    if mask is None:
        return _Rules(None, causal=False)
    others = mask.window, mask.key_segments, mask.allowed
    return _Rules(mask.real, mask.causal) if all(rule is None for rule in others) else None


def _are_missing(*arguments: object) -> bool:
    return all(argument is None for argument in arguments)


class FusedSelfAttention(MultiHeadAttention):
    """Self-attention whose queries, keys and values are one operation, and with short sequences the attention too."""

    max_length: int
    """The most tokens of a short sequence."""

    @override
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        **others: Any,
    ) -> Tensor:
        rules = None
        if query.shape[1] <= self.max_length and _are_missing(key, value, *others.values()):
            rules = _rules(self, mask)
        if rules is None:
            return super().forward(query, key, value, mask=mask, **others)
        linear: Any = self.qkv_proj
        settings = rules.real, rules.causal, self.n_heads, self.attend.scale, isinstance(linear, Float8Linear)
        mixed: Tensor = _SelfAttention.apply(query, linear.weight, linear.bias, *settings)  # type: ignore[no-untyped-call]
        return self.out_proj(mixed)

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


class FusedCrossAttention(MultiHeadAttention):
    """Cross-attention that is one operation with its input projections, if the sequences are short."""

    max_length: int
    """The most queries, and the most keys, of short sequences."""

    @override
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        **others: Any,
    ) -> Tensor:
        rules = None
        if key is not None and _are_missing(value, *others.values()) and query.shape[0] == key.shape[0]:
            # Not by their maximum, which would compile again wherever the other one is longer.
            is_short = query.shape[1] <= self.max_length and key.shape[1] <= self.max_length
            rules = _rules(self, mask) if is_short else None
        if key is None or rules is None or rules.causal:
            return super().forward(query, key, value, mask=mask, **others)
        q_proj: Any = self.q_proj
        kv_proj: Any = self.kv_proj
        weights = q_proj.weight, q_proj.bias, kv_proj.weight, kv_proj.bias
        in_float8 = isinstance(q_proj, Float8Linear), isinstance(kv_proj, Float8Linear)
        settings = rules.real, self.n_heads, self.attend.scale, *in_float8
        mixed: Tensor = _CrossAttention.apply(query, key, *weights, *settings)  # type: ignore[no-untyped-call]
        return self.out_proj(mixed)


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        real: Tensor | None,
        causal: bool,
        n_heads: int,
        scale: float,
        in_float8: bool,
    ) -> Tensor:
        """Return the attention of x (B, T, C) to itself, (B, T, H·D), with joined projections, weight (3·H·D, C)."""
        rows = x.flatten(0, 1)
        joined = linear_rows(rows, weight, bias, in_float8).view(*x.shape[:2], -1)
        mixed = short_attention(*_heads(joined, 3, n_heads), real, causal, scale)
        ctx.save_for_backward(rows, weight, joined, real)
        ctx.causal, ctx.n_heads, ctx.scale = causal, n_heads, scale
        ctx.has_bias, ctx.in_float8 = bias is not None, in_float8
        return mixed.flatten(2)

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weight and bias."""
        rows, weight, joined, real = ctx.saved_tensors
        gradient = upstream[0].reshape(*joined.shape[:2], ctx.n_heads, -1)
        q, k, v = _heads(joined, 3, ctx.n_heads)
        of_joined, sums = short_self_attention_gradient(gradient, q, k, v, real, ctx.causal, ctx.scale)
        of_rows, of_weight = _linear_gradients(of_joined.flatten(0, 1), rows, weight, ctx.in_float8)
        of_bias = sums.sum(0).to(rows.dtype) if ctx.has_bias else None
        return of_rows.view(*joined.shape[:2], -1), of_weight, of_bias, None, None, None, None, None


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        x: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        q_bias: Tensor | None,
        kv_weight: Tensor,
        kv_bias: Tensor | None,
        real: Tensor | None,
        n_heads: int,
        scale: float,
        q_in_float8: bool,
        kv_in_float8: bool,
    ) -> Tensor:
        """Return the attention of x (B, T, C) to `memory` (B, S, C), (B, T, H·D).

        Weights: q_weight (H·D, C), and kv_weight (2·H·D, C) for keys and values.
        """
        rows, memory_rows = x.flatten(0, 1), memory.flatten(0, 1)
        queries = linear_rows(rows, q_weight, q_bias, q_in_float8).view(*x.shape[:2], -1)
        joined = linear_rows(memory_rows, kv_weight, kv_bias, kv_in_float8).view(*memory.shape[:2], -1)
        mixed = short_attention(*_heads(queries, 1, n_heads), *_heads(joined, 2, n_heads), real, False, scale)
        ctx.save_for_backward(rows, memory_rows, q_weight, kv_weight, queries, joined, real)
        ctx.n_heads, ctx.scale, ctx.in_float8 = n_heads, scale, (q_in_float8, kv_in_float8)
        ctx.has_bias = q_bias is not None, kv_bias is not None
        return mixed.flatten(2)

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, memory, weights and biases."""
        rows, memory_rows, q_weight, kv_weight, queries, joined, real = ctx.saved_tensors
        gradient = upstream[0].reshape(*queries.shape[:2], ctx.n_heads, -1)
        (q,), (k, v) = _heads(queries, 1, ctx.n_heads), _heads(joined, 2, ctx.n_heads)
        found = short_cross_attention_gradient(gradient, q, k, v, real, ctx.scale)
        of_queries, of_joined, q_sums, kv_sums = found
        of_rows, of_q_weight = _linear_gradients(of_queries.flatten(0, 1), rows, q_weight, ctx.in_float8[0])
        of_memory, of_kv_weight = _linear_gradients(of_joined.flatten(0, 1), memory_rows, kv_weight, ctx.in_float8[1])
        of_q_bias = q_sums.sum(0).to(rows.dtype) if ctx.has_bias[0] else None
        of_kv_bias = kv_sums.sum(0).to(rows.dtype) if ctx.has_bias[1] else None
        of_inputs = of_rows.view(*queries.shape[:2], -1), of_memory.view(*joined.shape[:2], -1)
        return *of_inputs, of_q_weight, of_q_bias, of_kv_weight, of_kv_bias, None, None, None, None, None


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
        q, k, v = torch.split(linear_rows(x, weight, bias, in_float8), sizes, -1)
        return q, k, v

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weight and bias."""
        x, weight = ctx.saved_tensors
        q, k, v = (gradient.contiguous() for gradient in upstream)
        joined, sums, *quantized = join_gradients(q, k, v, ctx.in_float8)
        of_x = quantized_product(quantized, weight) if ctx.in_float8 else joined @ weight
        of_bias = sums.sum(0).to(x.dtype) if ctx.has_bias else None
        return of_x, joined.t() @ x, of_bias, None, None


def _heads(joined: Tensor, n_parts: int, n_heads: int) -> Sequence[Tensor]:
    """Split the columns of a joined projection into N parts, and each into heads: (B, T, N·H·D) -> N x (B, H, T, D)."""
    return [split_heads(part, n_heads) for part in joined.chunk(n_parts, -1)]


def _linear_gradients(gradient: Tensor, x: Tensor, weight: Tensor, in_float8: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients by x (N, in) and weight (out, in) of a linear layer, given that of its output (N, out)."""
    of_x = quantized_product(quantize_rows(gradient), weight) if in_float8 else gradient @ weight
    return of_x, gradient.t() @ x
