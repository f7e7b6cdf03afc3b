"""Layers whose backward pass is fused on a GPU: feed-forward networks, and attention (`fused_attention.py`).

One pass computes the gradient of a large layer, sums it for the bias and quantizes it for fp8
(`kernels/gradient_rows.py`); code of `torch.compile` makes several passes. The results are those of the plain layers up
to rounding. `fuse_backward` changes layers of a model from outside. They keep their parameters.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.float8_rows import quantize_rows
from glassformer.kernels.gate_gradient import exchange_gate_gradient, gate_gradient
from glassformer.kernels.gradient_rows import ACTIVATIONS, activate_rows, activation_gradient
from glassformer.kernels.kernel_set import KernelSet
from glassformer.kernels.relu_product import relu_product
from glassformer.nn import FeedForward, Layer, Stack
from glassformer.nn.activations import activation_function
from glassformer.training.float8_linear import Float8Linear, float8_product, linear_rows, quantized_product
from glassformer.training.fused_attention import fuse_attention


def fuse_backward(model: nn.Module) -> int:
    """Fuse the backward pass of a model's feed-forward networks and attention, in place, and return how many.

    Gated feed-forward networks are changed only with joined projections and not in fp8, attention only as
    `fuse_attention` says.
    """
    found = 0
    stacks = [module for module in model.modules() if isinstance(module, Stack) and module.gradient_checkpointing]
    repeated = {id(layer) for stack in stacks for layer in stack.layers}
    for layer in [module for module in model.modules() if isinstance(module, Layer)]:
        ffn = layer.ffn
        if type(ffn) is FeedForward and (_can_fuse_feedforward(ffn) or _can_fuse_gated(ffn)):
            ffn.__class__ = FusedFeedForward if ffn.gate_up_proj is None else FusedGatedFeedForward
            ffn.__dict__["is_repeated"] = id(layer) in repeated
            found += 1
        found += fuse_attention(layer)
    return found


def _can_fuse_feedforward(ffn: FeedForward) -> bool:
    if ffn.gate_up_proj is not None or ffn.gate_proj is not None or ffn.activation not in ACTIVATIONS:
        return False
    return type(ffn.up_proj) is type(ffn.down_proj) and _are_linear(ffn.up_proj, ffn.down_proj)


def _can_fuse_gated(ffn: FeedForward) -> bool:
    return type(ffn.gate_up_proj) is type(ffn.down_proj) is nn.Linear and ffn.activation in ACTIVATIONS


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


class FusedGatedFeedForward(FeedForward):
    """A gated feed-forward network with joined projections, as one operation."""

    is_repeated: bool
    """Whether the backward pass computes the forward pass again (gradient checkpointing). Then the gradients of gate
    and up replace gate and up, which saves the largest matrix of a layer, and one kernel computes them and the hidden
    values."""

    @override
    def forward(self, x: Tensor, kernels: KernelSet | None = None) -> Tensor:
        if self.training and self.dropout.p:
            return super().forward(x, kernels)
        joined: Any = self.gate_up_proj
        weights = joined.weight, joined.bias, self.down_proj.weight, self.down_proj.bias
        arguments = *weights, self.activation, self.is_repeated
        rows: Tensor = _GatedFeedForward.apply(x.flatten(0, -2), *arguments)  # type: ignore[no-untyped-call]
        return rows.view(x.shape)


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
        if in_float8:
            before = linear_rows(x, up, up_bias, in_float8)
            hidden, numbers, factors = activate_rows(before, activation)
            out = float8_product(numbers, factors, *quantize_rows(down), bias=down_bias, dtype=x.dtype)
        elif activation == "relu" and up_bias is not None:
            before = hidden = relu_product(x, up, up_bias)  # relu(x) is above 0 where x is: all that its gradient needs
            out = F.linear(hidden, down, down_bias)
        else:
            before = F.linear(x, up, up_bias)
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
        of_hidden = quantized_product(quantize_rows(gradient), down) if ctx.in_float8 else gradient @ down
        of_before, sums, *quantized = activation_gradient(of_hidden, before, ctx.activation, ctx.in_float8)
        of_x = quantized_product(quantized, up) if ctx.in_float8 else of_before @ up
        of_up_bias = sums.sum(0).to(x.dtype) if ctx.has_up_bias else None
        of_down_bias = gradient.sum(0) if ctx.has_down_bias else None
        return of_x, of_before.t() @ x, of_up_bias, gradient.t() @ hidden, of_down_bias, None, None


class _GatedFeedForward(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        x: Tensor,
        joined_weight: Tensor,
        joined_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        activation: Any,
        is_repeated: bool,
    ) -> Tensor:
        """Return down(act(gate(x)) * up(x)) of x (N, C), joined weights of gate and up (2 F, C), and down (C, F)."""
        joined = F.linear(x, joined_weight, joined_bias)
        gate, up = joined.chunk(2, 1)
        hidden = _activated(gate, activation) * up
        ctx.save_for_backward(x, joined, None if is_repeated else hidden, joined_weight, down)
        ctx.activation, ctx.is_repeated = activation, is_repeated
        ctx.has_joined_bias, ctx.has_down_bias = joined_bias is not None, down_bias is not None
        return F.linear(hidden, down, down_bias)

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradients by x, weights and biases."""
        x, joined, hidden, joined_weight, down = ctx.saved_tensors
        (gradient,) = upstream
        of_hidden = gradient @ down
        if ctx.is_repeated:
            exchange_gate_gradient(of_hidden, joined, ctx.activation)
            hidden, of_joined = of_hidden, joined  # as they are now
        else:
            of_joined = gate_gradient(of_hidden, joined, ctx.activation)
        of_joined_bias = of_joined.sum(0) if ctx.has_joined_bias else None
        of_down_bias = gradient.sum(0) if ctx.has_down_bias else None
        of_weights = of_joined.t() @ x, of_joined_bias, gradient.t() @ hidden, of_down_bias
        return of_joined @ joined_weight, *of_weights, None, None


def _activated(x: Tensor, activation: Any) -> Tensor:
    if activation == "gelu_tanh" and torch.compiler.is_compiling():  # as sigmoid: the compiled tanh is slower
        wide = x.float()
        return (wide * torch.sigmoid(wide * (1.5957691216057308 + 0.07135481282553125 * wide * wide))).to(x.dtype)
    return activation_function(activation)(x)
