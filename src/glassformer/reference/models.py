"""The three complete Transformers: encoder, decoder and encoder-decoder.

Each takes the `state_dict()` of the torch model of the same config, as arrays under the same names, and computes the
same outputs and gradients:

    oracle = EncoderModel(config, state)
    answer = oracle.forward(tokens)
    oracle.backward(gradient_by_answer)
    oracle.params.grads["embeddings.tokens.weight"]
"""

import math
from collections.abc import Mapping

import numpy as np

from glassformer.reference.attention import allowed_pairs
from glassformer.reference.blocks import Linear, Lookup, make_norm
from glassformer.reference.config import Config
from glassformer.reference.heads import Head
from glassformer.reference.layers import Stack
from glassformer.reference.parameters import Array, Parameters
from glassformer.reference.positions import sinusoids


class Embeddings:
    """Token embeddings: look-up, scaling, token types, positions, norm and projection.

    With `table`, the token table and the projection are those of another `Embeddings`, whose parameters `table` holds.
    """

    def __init__(self, params: Parameters, config: Config, table: Parameters | None = None):
        self.config = config
        source = params if table is None else table
        self.tokens = Lookup(source.at("tokens"))
        self.scale = math.sqrt(config.table_width) if config.scale_embeddings else config.embedding_multiplier or 1.0
        self.types = Lookup(params.at("token_types")) if config.token_types else None
        self.positions = Lookup(params.at("positions")) if config.positions == "learned" else None
        self.norm = make_norm(config.norm, params.at("norm"), config.norm_eps) if config.embedding_norm else None
        is_projected = config.embedding_width is not None
        self.projection = Linear(source.at("projection")) if is_projected else None

    def forward(self, tokens: Array, positions: Array, types: Array | None) -> Array:
        """Return the embeddings (B, T, C) of token ids (B, T) at position numbers (B, T).

        `types` are token types (B, T); None gives every token type 0, if the model has token types.
        """
        x = self.tokens.forward(tokens) * self.scale
        if self.types is not None:
            x = x + self.types.forward(np.zeros_like(tokens) if types is None else types)
        if self.positions is not None:
            x = x + self.positions.forward(positions + self.config.position_offset)
        elif self.config.positions == "sinusoidal":
            places = positions + self.config.position_offset
            form = {"halves": self.config.sinusoid_halves, "full_range": self.config.sinusoid_full_range}
            x = x + sinusoids(places.max() + 1, self.config.table_width, **form)[places].astype(x.dtype)
        if self.norm is not None:
            x = self.norm.forward(x)
        return x if self.projection is None else self.projection.forward(x)

    def backward(self, dx: Array) -> None:
        """Add the gradients of all embedding parameters to `params.grads`, given the gradient `dx` of the output."""
        if self.projection is not None:
            dx = self.projection.backward(dx)
        if self.norm is not None:
            dx = self.norm.backward(dx)
        if self.positions is not None:
            self.positions.backward(dx)
        if self.types is not None:
            self.types.backward(dx)
        self.tokens.backward(dx * self.scale)


class Model:
    """Base class of the three models: holds the config and the parameters, and builds the head.

    `state` maps parameter names to arrays, as in the torch model's `state_dict()`.
    """

    def __init__(self, config: Config, state: Mapping[str, Array], *, dtype: type = np.float64):
        self.config = config
        self.params = Parameters(state, dtype=dtype)

    def _make_head(self, embeddings: str) -> Head | None:
        if self.config.head == "none":
            return None
        tied = self.config.tie in ("output", "all")
        return Head(self.params.at("head"), self.config, self.params.at(f"{embeddings}.tokens") if tied else None)


class EncoderModel(Model):
    """An encoder-only model with bidirectional attention."""

    stack_name, causal = "encoder", False

    def __init__(self, config: Config, state: Mapping[str, Array], *, dtype: type = np.float64):
        super().__init__(config, state, dtype=dtype)
        depth = config.n_decoder_layers if self.causal else config.n_encoder_layers
        self.embeddings = Embeddings(self.params.at("embeddings"), config)
        self.stack = Stack(self.params.at(self.stack_name), config, depth, bidirectional=not self.causal, cross=False)
        self.head = self._make_head("embeddings")

    def forward(
        self,
        tokens: Array,
        mask: Array | None = None,
        *,
        token_types: Array | None = None,
        segments: Array | None = None,
    ) -> Array:
        """Return the head's output for token ids (B, T), or the last hidden states if there is no head.

        `mask` is (B, T), True for real tokens. `segments` (B, T) numbers the packed document of each token.
        """
        positions = count_positions(tokens, mask, segments)
        window = self.config.sliding_window
        allowed, everywhere = (
            allowed_pairs(positions, causal=self.causal, window=reach, real=mask, segments=segments)
            for reach in (window, None)
        )
        x = self.embeddings.forward(tokens, positions, token_types)
        hidden = self.stack.forward(x, positions, allowed, allowed_globally=everywhere)
        return hidden if self.head is None else self.head.forward(hidden, mask)

    def backward(self, dy: Array) -> None:
        """Add every parameter's gradient to `params.grads`, given the gradient `dy` of the output."""
        if self.head is not None:
            dy = self.head.backward(dy)
        dx, _ = self.stack.backward(dy)
        self.embeddings.backward(dx)


class DecoderModel(EncoderModel):
    """A decoder-only model: the same computation as the encoder's, with a causal mask."""

    stack_name, causal = "decoder", True


class EncoderDecoderModel(Model):
    """An encoder, and a causal decoder that attends to the encoder's output."""

    def __init__(self, config: Config, state: Mapping[str, Array], *, dtype: type = np.float64):
        super().__init__(config, state, dtype=dtype)
        source = self.params.at("source_embeddings")
        is_shared = config.tie in ("embeddings", "all")
        self.source_embeddings = Embeddings(source, config)
        self.target_embeddings = Embeddings(
            self.params.at("target_embeddings"), config, table=source if is_shared else None
        )
        self.encoder = Stack(
            self.params.at("encoder"), config, config.n_encoder_layers, bidirectional=True, cross=False
        )
        self.decoder = Stack(
            self.params.at("decoder"), config, config.n_decoder_layers, bidirectional=False, cross=True
        )
        self.head = self._make_head("source_embeddings" if is_shared else "target_embeddings")

    def forward(
        self,
        source: Array,
        target: Array,
        source_mask: Array | None = None,
        target_mask: Array | None = None,
    ) -> Array:
        """Return the head's output for source ids (B, S) and target ids (B, T), or the hidden states without a head.

        The masks have the shapes of their tokens: True for real tokens, False for padding.
        """
        window = self.config.sliding_window
        source_positions = count_positions(source, source_mask)
        x = self.source_embeddings.forward(source, source_positions, None)
        allowed = allowed_pairs(source_positions, window=window, real=source_mask)
        everywhere = allowed_pairs(source_positions, real=source_mask)
        memory = self.encoder.forward(x, source_positions, allowed, allowed_globally=everywhere)

        target_positions = count_positions(target, target_mask)
        y = self.target_embeddings.forward(target, target_positions, None)
        allowed = allowed_pairs(target_positions, causal=True, window=window, real=target_mask)
        real = np.ones(source.shape, dtype=bool) if source_mask is None else source_mask
        memory_allowed = real[:, None, None, :]
        everywhere = allowed_pairs(target_positions, causal=True, real=target_mask)
        hidden = self.decoder.forward(y, target_positions, allowed, memory, memory_allowed, everywhere)
        return hidden if self.head is None else self.head.forward(hidden, target_mask)

    def backward(self, dy: Array) -> None:
        """Add every parameter's gradient to `params.grads`, given the gradient `dy` of the output."""
        if self.head is not None:
            dy = self.head.backward(dy)
        dy, dmemory = self.decoder.backward(dy)
        self.target_embeddings.backward(dy)
        assert dmemory is not None
        dx, _ = self.encoder.backward(dmemory)
        self.source_embeddings.backward(dx)


def build_model(
    config: Config, state: Mapping[str, Array], *, dtype: type = np.float64
) -> EncoderModel | EncoderDecoderModel:
    """Return the encoder, decoder or encoder-decoder that the config describes.

    `state` maps parameter names to arrays, as in the torch model's `state_dict()`. They are converted to `dtype`.
    """
    if config.n_encoder_layers and config.n_decoder_layers:
        return EncoderDecoderModel(config, state, dtype=dtype)
    return (DecoderModel if config.n_decoder_layers else EncoderModel)(config, state, dtype=dtype)


def count_positions(tokens: Array, mask: Array | None = None, segments: Array | None = None) -> Array:
    """Return each token's position, the number of real tokens before it in its packed document: (B, T) -> (B, T).

    `mask` is True for real tokens; `segments` numbers the packed document of each token.
    """
    real = np.ones(tokens.shape, dtype=int) if mask is None else mask.astype(int)
    positions = np.zeros(tokens.shape, dtype=int)
    for t in range(1, tokens.shape[1]):
        goes_on = True if segments is None else segments[:, t] == segments[:, t - 1]
        positions[:, t] = np.where(goes_on, positions[:, t - 1] + real[:, t - 1], 0)
    return positions
