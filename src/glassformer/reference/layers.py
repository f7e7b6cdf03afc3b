"""Residual connections, Transformer layers and stacks of layers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from glassformer.reference.attention import MultiHeadAttention
from glassformer.reference.blocks import FeedForward, make_norm
from glassformer.reference.config import Config
from glassformer.reference.convolution import Convolution
from glassformer.reference.disentangled import RelativeTable
from glassformer.reference.experts import ExpertFeedForward
from glassformer.reference.parameters import Array, Parameters
from glassformer.reference.positions import RelativeBias, alibi, rotary_angles, rotary_rates


class Sublayer:
    """A residual connection around a function f: norm(x + f(x)) for post-norm, x + f(norm(x)) for pre-norm.

    With the placement "output" it is x + norm(f(x)), and with "sandwich" x + post_norm(f(norm(x))).
    """

    def __init__(self, params: Parameters, config: Config):
        self.norm = make_norm(config.norm, params.at("norm"), config.norm_eps)  # without parameters if not used
        self.placement = config.norm_placement
        self.has_norm = True
        self.post_norm = make_norm(config.norm, params.at("post_norm"), config.norm_eps)
        self.multiplier = config.residual_multiplier

    def forward(self, x: Array, step: Callable[[Array], Array]) -> Array:
        """Apply the function `step` to x (B, T, C) inside the residual connection."""
        if not self.has_norm:
            return x + self.multiplier * step(x)
        if self.placement == "pre":
            return x + self.multiplier * step(self.norm.forward(x))
        if self.placement == "output":
            return x + self.multiplier * self.norm.forward(step(x))
        if self.placement == "sandwich":
            return x + self.multiplier * self.post_norm.forward(step(self.norm.forward(x)))
        return self.norm.forward(x + self.multiplier * step(x))

    def backward(self, dy: Array, step: Callable[[Array], Array]) -> Array:
        """Return the gradient of x: the sum of the paths through the function and through the residual.

        `step` is the backward pass of the function that `forward` applied.
        """
        if not self.has_norm:
            return dy + step(self.multiplier * dy)
        if self.placement == "pre":
            return dy + self.norm.backward(step(self.multiplier * dy))
        if self.placement == "output":
            return dy + step(self.norm.backward(self.multiplier * dy))
        if self.placement == "sandwich":
            return dy + self.norm.backward(step(self.post_norm.backward(self.multiplier * dy)))
        dsum = self.norm.backward(dy)
        return dsum + step(self.multiplier * dsum)


class Layer:
    """A Transformer layer: self-attention, cross-attention if `cross`, and feed-forward, each with a residual.

    `scale` multiplies the attention scores; None is the config's.
    """

    def __init__(self, params: Parameters, config: Config, *, cross: bool, scale: float | None = None):
        self.self_attn = MultiHeadAttention(params.at("self_attn"), config, scale)
        self.self_attn_sublayer = Sublayer(params.at("self_attn_sublayer"), config)
        self.cross_attn = None
        if cross:
            self.cross_attn = MultiHeadAttention(params.at("cross_attn"), config, scale)
            self.cross_attn_sublayer = Sublayer(params.at("cross_attn_sublayer"), config)
        self.ffn: FeedForward | ExpertFeedForward
        if config.n_experts:
            self.ffn = ExpertFeedForward(params.at("ffn"), config)
        else:
            self.ffn = FeedForward(params.at("ffn"), config.activation, config.gated)
        self.ffn_sublayer = Sublayer(params.at("ffn_sublayer"), config)
        self.parallel, self.multiplier = config.parallel_ffn, config.residual_multiplier

    def forward(
        self,
        x: Array,
        allowed: Array,
        bias: Array | None,
        angles: Array | None,
        memory: Array | None,
        memory_allowed: Array | None,
        relative: tuple[Array, Array] | None = None,
    ) -> Array:
        """Apply the layer to x (B, T, C) and return the same shape.

        Args:
            allowed: Which tokens each token may attend to, broadcast to (B, H, T, T).
            bias: Added to the self-attention scores, broadcast to (B, H, T, T).
            angles: Rotary angles of the tokens.
            memory: The encoder's output, (B, S, C), for cross-attention.
            memory_allowed: Which tokens of the encoder's output may be attended to.
            relative: Vectors of relative positions, and the row of each pair of tokens.
        """

        def self_attn(y: Array) -> Array:
            return self.self_attn.forward(y, y, allowed, bias, angles, relative)

        if self.parallel != "none":
            y = self.self_attn_sublayer.norm.forward(x)
            z = y if self.parallel == "one_norm" else self.ffn_sublayer.norm.forward(x)
            return x + self.multiplier * (self_attn(y) + self.ffn.forward(z))
        x = self.self_attn_sublayer.forward(x, self_attn)
        cross = self.cross_attn
        if cross is not None and memory is not None and memory_allowed is not None:
            x = self.cross_attn_sublayer.forward(x, lambda y: cross.forward(y, memory, memory_allowed))
        return self.ffn_sublayer.forward(x, self.ffn.forward)

    def backward(self, dy: Array) -> tuple[Array, Array | None, Array]:
        """Return the gradients of x, of the encoder's output (None without cross-attention) and of the score bias."""
        dmemory: Array | None = None
        dbias: Array = np.zeros(())

        def through_cross(dstep: Array) -> Array:
            nonlocal dmemory
            assert self.cross_attn is not None
            dquery, dmemory, _ = self.cross_attn.backward(dstep)
            return dquery

        def through_self(dstep: Array) -> Array:
            nonlocal dbias
            dquery, dkeys, dbias = self.self_attn.backward(dstep)
            return dquery + dkeys

        if self.parallel != "none":
            dy_attn, dy_ffn = through_self(self.multiplier * dy), self.ffn.backward(self.multiplier * dy)
            if self.parallel == "one_norm":
                return dy + self.self_attn_sublayer.norm.backward(dy_attn + dy_ffn), dmemory, dbias
            dx = self.self_attn_sublayer.norm.backward(dy_attn) + self.ffn_sublayer.norm.backward(dy_ffn)
            return dy + dx, dmemory, dbias
        dx = self.ffn_sublayer.backward(dy, self.ffn.backward)
        if self.cross_attn is not None:
            dx = self.cross_attn_sublayer.backward(dx, through_cross)
        dx = self.self_attn_sublayer.backward(dx, through_self)
        return dx, dmemory, dbias


class Stack:
    """A stack of layers (encoder or decoder) with an optional final norm.

    It also computes what attention needs to know about positions: rotary angles, relative bias or ALiBi.
    """

    def __init__(self, params: Parameters, config: Config, depth: int, *, bidirectional: bool, cross: bool):
        self.config = config
        # A shared layer is used many times, and each use keeps its own forward: many objects over one set of
        # parameters.
        names = [f"layers.{0 if config.share_layers else index}" for index in range(depth)]
        self.layers = [
            Layer(
                params.at(name),
                self.config_of(index),
                cross=cross,
                scale=config.scale / (index + 1 if config.scale_by_depth else 1),
            )
            for index, name in enumerate(names)
        ]
        self.norm = make_norm(config.norm, params.at("norm"), config.norm_eps) if config.has_final_norm else None
        if not config.first_norm:
            self.layers[0].self_attn_sublayer.has_norm = False
        self.convolution: Convolution | None = None
        if config.conv_kernel is not None:
            self.convolution = Convolution(params.at("layers.0.convolution"), config)
        self.relative = RelativeTable(params.at("relative"), config) if config.positions == "disentangled" else None
        # One table for all layers, or one for each. A table of a shared layer is used many times, as the layer is.
        self.tables: list[RelativeBias] = []
        if config.has_relative_bias:
            n_tables = 1 if config.share_relative_bias else depth
            parts = [f".{0 if config.share_layers else index}" for index in range(n_tables)]
            self.tables = [
                RelativeBias(
                    params.at("score_bias" + ("" if config.share_relative_bias else part)),
                    config.relative_max_distance,
                    bidirectional,
                )
                for part in parts
            ]

    def config_of(self, index: int) -> Config:
        """Return the config of a layer.

        Layers that are not global may have other rotary positions, and some layers have no experts.
        """
        config, theta = self.config, self.config.local_rope_theta
        if index in config.dense_layers:
            config = replace(config, n_experts=0)
        if theta is None or index in config.global_layers:
            return config
        return replace(config, rope_theta=theta, rope_scaling="none")

    def forward(
        self,
        x: Array,
        positions: Array,
        allowed: Array,
        memory: Array | None = None,
        memory_allowed: Array | None = None,
        allowed_globally: Array | None = None,
    ) -> Array:
        """Apply all layers and the final norm to x (B, T, C) and return the same shape.

        `positions` are the position numbers (B, T). Global layers attend to the tokens of `allowed_globally`. The other
        arguments are those of `Layer.forward`.
        """
        biases: list[Array] = [table.forward(positions) for table in self.tables]
        if self.config.positions == "alibi":
            biases = [alibi(self.config.n_heads, positions)]
        relative = None if self.relative is None else self.relative.forward(positions)
        for index, layer in enumerate(self.layers):
            bias = biases[index % len(biases)] if biases else None
            angles = None
            if self.config.positions == "rotary" and index not in self.config.unrotated_layers:
                angles = rotary_angles(positions, rotary_rates(self.config_of(index)))
            is_local = allowed_globally is None or index not in self.config.global_layers
            pairs = allowed if is_local or allowed_globally is None else allowed_globally
            before, x = x, layer.forward(x, pairs, bias, angles, memory, memory_allowed, relative)
            if index == 0 and self.convolution is not None:  # a key that some query may attend to is no padding
                x = self.convolution.forward(before, x, np.asarray(allowed.any((1, 2))))
        return x if self.norm is None else self.norm.forward(x)

    def backward(self, dy: Array) -> tuple[Array, Array | None]:
        """Return the gradients of x and of the encoder's output.

        The latter is summed over all layers, and None if the layers have no cross-attention.
        """
        dmemory = None
        dbiases: list[Array] = [np.zeros(()) for _ in self.tables]
        if self.norm is not None:
            dy = self.norm.backward(dy)
        for index, layer in reversed([*enumerate(self.layers)]):
            dbefore: Array | float = 0.0
            if index == 0 and self.convolution is not None:
                dbefore, dy = self.convolution.backward(dy)
            dy, dmemory_here, dbias = layer.backward(dy)
            dy = dy + dbefore
            if dmemory_here is not None:
                dmemory = dmemory_here if dmemory is None else dmemory + dmemory_here
            if dbiases:
                dbiases[index % len(dbiases)] = dbiases[index % len(dbiases)] + dbias
        if self.relative is not None:
            self.relative.backward(sum((layer.self_attn.dtable for layer in self.layers), np.zeros(())))
        for table, dtable in zip(self.tables, dbiases, strict=True):
            table.backward(dtable)
        return dy, dmemory
