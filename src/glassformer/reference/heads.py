"""Heads, which turn hidden states into logits, class scores, span scores or an embedding of the sequence."""

import numpy as np

from glassformer.reference.blocks import ACTIVATIONS, Linear, make_norm
from glassformer.reference.config import Config
from glassformer.reference.parameters import Array, Parameters


class Transform:
    """A dense layer, an activation and, if `config.has_head_norm`, a norm; applied before a head's projection."""

    def __init__(self, params: Parameters, config: Config, activation: str):
        self.dense = Linear(params.at("dense"))
        self.activation = ACTIVATIONS[activation]
        self.norm = make_norm(config.norm, params.at("norm"), config.norm_eps) if config.has_head_norm else None

    def forward(self, x: Array) -> Array:
        """Return the transformed x: (..., C) -> (..., C'), where C' is the width of the dense layer's output."""
        y, self.slope = self.activation(self.dense.forward(x))
        return y if self.norm is None else self.norm.forward(y)

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x, through the norm, the activation and the dense layer."""
        if self.norm is not None:
            dy = self.norm.backward(dy)
        return self.dense.backward(dy * self.slope)


class Pool:
    """Pool a sequence to one vector: its first or last real token, or a mean or the maximum of its real tokens."""

    def __init__(self, kind: str):
        self.kind = kind

    def forward(self, hidden: Array, real: Array | None) -> Array:
        """Return one vector per sequence, (B, T, C) -> (B, C), as a weighted sum of its tokens.

        The maximum is such a sum, too: in each column, its weight is 1 for the largest value.
        `real` is (B, T), True for real tokens; None means all are real.
        """
        real = np.ones(hidden.shape[:2], dtype=bool) if real is None else real
        if self.kind == "max":
            largest = np.where(real[:, :, None], hidden, -np.inf).argmax(1)
            self.weights = (np.arange(real.shape[1])[:, None] == largest[:, None, :]).astype(hidden.dtype)
            return (self.weights * hidden).sum(1)
        if self.kind in ("mean", "mean_sqrt"):
            count = np.maximum(real.sum(1, keepdims=True), 1)
            self.weights = real / (np.sqrt(count) if self.kind == "mean_sqrt" else count)
        elif self.kind == "weighted_mean":
            places = real * real.cumsum(1)
            self.weights = places / np.maximum(places.sum(1, keepdims=True), 1)
        else:
            length = real.shape[1]
            chosen = real.argmax(1) if self.kind == "first" else length - 1 - real[:, ::-1].argmax(1)
            self.weights = np.eye(length)[chosen]
        return np.einsum("bt,btc->bc", self.weights, hidden)

    def backward(self, dpooled: Array) -> Array:
        """Return the gradient of the hidden states: (B, C) -> (B, T, C)."""
        weights = self.weights if self.kind == "max" else self.weights[:, :, None]
        return weights * dpooled[:, None, :]


class Head:
    """The head that `config.head` names, with pooling, transform and scaling where the config asks for them.

    It ends with a projection, or, for an embedding of unit length, with a division by the Euclidean norm.
    """

    def __init__(self, params: Parameters, config: Config, tied: Parameters | None):
        is_words = config.head == "language_model"
        self.pool = Pool(config.pool_by) if config.head in ("sequence_class", "embedding") else None
        self.transform = None
        if config.head_transform:
            activation = config.head_activation or (config.activation if is_words else "tanh")
            self.transform = Transform(params.at("transform"), config, activation)
        self.scale = config.d_model**-0.5 if is_words and config.scale_output else 1.0
        self.scale *= config.output_multiplier if is_words else 1.0
        self.softcap = config.output_softcap if is_words else None
        self.has_unit_length = config.unit_length
        self.projection = None if config.head == "embedding" else Linear(params.at("out_proj"), tied=tied)

    def forward(self, hidden: Array, real: Array | None) -> Array:
        """Return the head's output for hidden states (B, T, C).

        It is (B, T, V) for a language model, (B, T, labels) for token classes and spans, (B, labels) for sequence
        classes and (B, C) for an embedding. `real` is (B, T), True for real tokens; None means all are real.
        """
        x = hidden if self.pool is None else self.pool.forward(hidden, real)
        if self.transform is not None:
            x = self.transform.forward(x)
        if self.projection is not None:
            logits = self.projection.forward(x * self.scale)
            if self.softcap is None:
                return logits
            self.bounded = np.tanh(logits / self.softcap)
            return self.softcap * self.bounded
        if not self.has_unit_length:
            return x
        self.length = np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), 1e-12)
        self.unit = x / self.length
        return self.unit

    def backward(self, dy: Array) -> Array:
        """Return the gradient with respect to the hidden states."""
        if self.softcap is not None:
            dy = dy * (1 - self.bounded**2)
        if self.projection is not None:
            dx = self.projection.backward(dy) * self.scale
        elif not self.has_unit_length:
            dx = dy
        else:  # the unit length removes the component along the vector
            dx = (dy - self.unit * (dy * self.unit).sum(-1, keepdims=True)) / self.length
        if self.transform is not None:
            dx = self.transform.backward(dx)
        return dx if self.pool is None else self.pool.backward(dx)
