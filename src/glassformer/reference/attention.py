"""Attention from first principles: compare queries with keys, turn the scores into weights, sum the weighted values.

Shapes: B batch, T queries, S keys, C width, H heads, G key-value heads, D head size.
"""

import numpy as np

from glassformer.reference.blocks import Linear, make_norm
from glassformer.reference.config import Config
from glassformer.reference.disentangled import DisentangledBias
from glassformer.reference.parameters import Array, Parameters
from glassformer.reference.positions import distance_ahead, rotary_amplitude, turn


def softmax(scores: Array) -> Array:
    """Return the softmax over the last axis. Subtracting the maximum keeps exp from overflowing."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def log_softmax(logits: Array) -> Array:
    """Return the log-softmax over the last axis, without taking the logarithm of zero."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def masked_softmax(scores: Array, allowed: Array) -> Array:
    """Return the softmax over the allowed entries of the last axis. Where none is allowed, the result is all zeros."""
    highest = np.where(allowed, scores, -np.inf).max(-1, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    powers = np.where(allowed, np.exp(np.where(allowed, scores, highest) - highest), 0.0)
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1.0, total)


def allowed_pairs(
    positions: Array,
    *,
    causal: bool = False,
    window: int | None = None,
    real: Array | None = None,
    segments: Array | None = None,
) -> Array:
    """Return which keys each query may attend to, as a boolean mask: positions (B, T) -> (B, 1, T, T).

    Args:
        window: A query attends only to keys fewer than this many positions away.
        real: (B, T), True for real tokens, False for padding.
        segments: (B, T), number of the packed document that each token belongs to.
    """
    batch, length = positions.shape
    allowed = np.ones((batch, length, length), dtype=bool)
    if causal:
        allowed &= np.tri(length, dtype=bool)
    if window is not None:
        allowed &= np.abs(distance_ahead(positions)) < window
    if real is not None:
        allowed &= real[:, None, :]
    if segments is not None:
        allowed &= segments[:, :, None] == segments[:, None, :]
    return allowed[:, None]


def split_heads(x: Array, n_heads: int) -> Array:
    """Split the last axis into heads: (B, T, H·D) -> (B, H, T, D)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, n_heads, width // n_heads).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """Concatenate the heads: (B, H, T, D) -> (B, T, H·D)."""
    batch, n_heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, n_heads * size)


class ScaledDotProduct:
    """Scaled dot-product attention with its backward pass: softmax(q kᵀ · scale + bias) v.

    With a soft cap c the products become c · tanh(q kᵀ · scale / c).
    """

    def __init__(self, scale: float, softcap: float | None = None):
        self.scale, self.softcap = scale, softcap

    def forward(self, q: Array, k: Array, v: Array, allowed: Array, bias: Array | None) -> Array:
        """Return the attention output: q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D).

        `allowed` is True where a query may attend to a key; it and `bias` broadcast to (B, H, T, S).
        """
        self.q, self.k, self.v = q, k, v
        scores = q @ k.swapaxes(-1, -2) * self.scale  # (B, H, T, S)
        if self.softcap is not None:
            self.bounded = np.tanh(scores / self.softcap)
            scores = self.softcap * self.bounded
        if bias is not None:
            scores = scores + bias
        self.weights = masked_softmax(scores, allowed)
        return self.weights @ v

    def backward(self, dout: Array) -> tuple[Array, Array, Array, Array]:
        """Return the gradients with respect to q, k, v and the scores, given the output's gradient `dout`.

        Weights sum to 1, so the gradient of the scores is weights * (dweights - the weighted mean of dweights).
        """
        dv = self.weights.swapaxes(-1, -2) @ dout
        dweights = dout @ self.v.swapaxes(-1, -2)
        dscores = self.weights * (dweights - (dweights * self.weights).sum(-1, keepdims=True))
        dproducts = dscores if self.softcap is None else dscores * (1 - self.bounded**2)
        return dproducts @ self.k * self.scale, dproducts.swapaxes(-1, -2) @ self.q * self.scale, dv, dscores


class Clip:
    """Clips numbers to the range from -bound to bound; None clips nothing."""

    def __init__(self, bound: float | None):
        self.bound = np.inf if bound is None else bound

    def forward(self, x: Array) -> Array:
        """Return x with its values clipped."""
        self.is_inside = np.abs(x) <= self.bound
        return np.clip(x, -self.bound, self.bound)

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x: none where x was clipped."""
        return np.where(self.is_inside, dy, 0.0)


class MultiHeadAttention:
    """Multi-head attention: project to Q, K and V, attend per head, concatenate the heads, project the result."""

    def __init__(self, params: Parameters, config: Config, scale: float | None = None):
        self.config = config
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            Linear(params.at(name)) for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        )
        self.norms = None
        if config.qk_norm:
            self.norms = [make_norm(config.norm, params.at(name), config.norm_eps) for name in ("q_norm", "k_norm")]
        self.clips = [Clip(config.clip_qkv) for _ in "qkv"]
        self.core = ScaledDotProduct(config.scale if scale is None else scale, config.attention_softcap)
        self.amplitude = rotary_amplitude(config)
        self.disentangled = DisentangledBias(params, config) if config.positions == "disentangled" else None
        self.dtable: Array = np.zeros(())

    def forward(
        self,
        query: Array,
        memory: Array,
        allowed: Array,
        bias: Array | None = None,
        angles: Array | None = None,
        relative: tuple[Array, Array] | None = None,
    ) -> Array:
        """Attend from `query` (B, T, C) to `memory` (B, S, C) and return (B, T, C).

        Self-attention passes the same array twice; cross-attention passes the encoder's output as `memory`. `angles`
        are the rotary angles of the tokens; `relative` holds the vectors of relative positions and each pair's row.
        """
        self.angles = angles
        q, k = self.clips[0].forward(self.q_proj.forward(query)), self.clips[1].forward(self.k_proj.forward(memory))
        over_all = self.config.qk_norm_over == "all_heads"
        if self.norms is not None and over_all:
            q, k = self.norms[0].forward(q), self.norms[1].forward(k)
        q, k = split_heads(q, self.config.n_heads), split_heads(k, self.config.kv_heads)
        v = split_heads(self.clips[2].forward(self.v_proj.forward(memory)), self.config.kv_heads)
        if self.norms is not None and not over_all:
            q, k = self.norms[0].forward(q), self.norms[1].forward(k)
        if angles is not None:
            q, k = turn(q, angles, self.amplitude), turn(k, angles, self.amplitude)
        if self.disentangled is not None and relative is not None:
            bias = self.disentangled.forward(q, k, *relative)
        group = self.config.n_heads // self.config.kv_heads
        mixed = self.core.forward(q, k.repeat(group, axis=1), v.repeat(group, axis=1), allowed, bias)
        return self.out_proj.forward(merge_heads(mixed))

    def backward(self, dy: Array) -> tuple[Array, Array, Array]:
        """Return the gradients with respect to `query`, `memory` and the score bias (B, H, T, S)."""
        dmixed = split_heads(self.out_proj.backward(dy), self.config.n_heads)
        dq, dk, dv, dscores = self.core.backward(dmixed)
        dk, dv = self._sum_groups(dk), self._sum_groups(dv)
        if self.disentangled is not None:
            dq_more, dk_more, self.dtable = self.disentangled.backward(dscores)
            dq, dk = dq + dq_more, dk + dk_more
        if self.angles is not None:
            dq, dk = turn(dq, -self.angles, self.amplitude), turn(dk, -self.angles, self.amplitude)
        over_all = self.config.qk_norm_over == "all_heads"
        if self.norms is not None and not over_all:
            dq, dk = self.norms[0].backward(dq), self.norms[1].backward(dk)
        dq, dk, dv = merge_heads(dq), merge_heads(dk), self.clips[2].backward(merge_heads(dv))
        if self.norms is not None and over_all:
            dq, dk = self.norms[0].backward(dq), self.norms[1].backward(dk)
        dquery = self.q_proj.backward(self.clips[0].backward(dq))
        dmemory = self.k_proj.backward(self.clips[1].backward(dk)) + self.v_proj.backward(dv)
        return dquery, dmemory, dscores

    def _sum_groups(self, grad: Array) -> Array:
        """Sum the gradients of the heads that share a key-value head: (B, H, S, D) -> (B, G, S, D)."""
        batch, _, length, size = grad.shape
        return grad.reshape(batch, self.config.kv_heads, -1, length, size).sum(2)
