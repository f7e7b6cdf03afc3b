"""Document 004, a Transformer encoder in NumPy, with the document's own names and arguments.

It is one of the five tutorial documents that this project implements (`docs/documents.md`), built from `reference/`.
The document's `EncoderLayer` assumes that the reader has `MultiHeadAttention`, `AddNorm` and `FeedForward`; they are
here too. Random numbers come from `np.random`, as in the document, so `np.random.seed` makes them reproducible.
"""
# ruff: noqa: N803  # W1 and W2 are the document's argument names

from collections.abc import Mapping, Sequence

import numpy as np

from glassformer.reference import attention, blocks
from glassformer.reference.config import Config
from glassformer.reference.initial import initial_parameters
from glassformer.reference.parameters import Array, Parameters
from glassformer.reference.positions import sinusoids
from glassformer.reference.text import simple_tokenizer

__all__ = [
    "AddNorm",
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "TransformerEncoder",
    "combine_heads",
    "create_embeddings",
    "feed_forward",
    "feed_forward_with_residual",
    "get_token_embeddings",
    "layer_norm",
    "positional_encoding",
    "relu",
    "simple_tokenizer",
    "softmax",
    "split_heads",
]

EPS = 1e-6


def create_embeddings(vocab_size: int, embed_dim: int) -> Array:
    """Return a random embedding table (vocab_size, embed_dim), normally distributed with standard deviation 0.01."""
    return np.random.randn(vocab_size, embed_dim) * 0.01


def get_token_embeddings(tokens: Sequence[str], vocab: Mapping[str, int], embeddings: Array) -> Array:
    """Return the rows of the table `embeddings` for T tokens, (T, C). `vocab` maps each token to its row.

    A token that is not in `vocab` raises KeyError.
    """
    unknown = [token for token in tokens if token not in vocab]
    if unknown:
        raise KeyError(f"token {unknown[0]!r} is not in the vocabulary: expected one of its {len(vocab)} tokens")
    return embeddings[[vocab[token] for token in tokens]]


def positional_encoding(seq_len: int, embed_dim: int) -> Array:
    """Return the table of sinusoidal positions, (seq_len, embed_dim)."""
    return sinusoids(seq_len, embed_dim)


def softmax(x: Array) -> Array:
    """Return the softmax over the last axis, computed after subtracting the maximum."""
    return attention.softmax(np.asarray(x))


def split_heads(x: Array, num_heads: int) -> Array:
    """Split the last axis into heads: (B, T, C) -> (B, H, T, D)."""
    return attention.split_heads(x, num_heads)


def combine_heads(x: Array) -> Array:
    """Concatenate the heads: (B, H, T, D) -> (B, T, C)."""
    return attention.merge_heads(x)


def layer_norm(x: Array, eps: float = EPS) -> Array:
    """Return (x - mean) / √(variance + eps) over the last axis, without a learned weight or bias."""
    values = {"weight": np.ones(x.shape[-1]), "bias": np.zeros(x.shape[-1])}
    return blocks.LayerNorm(Parameters(values, dtype=_dtype_of(x)), eps).forward(x)


def relu(x: Array) -> Array:
    """Return x where it is positive and 0 elsewhere."""
    return blocks.relu(np.asarray(x))[0]


def feed_forward(x: Array, W1: Array, b1: Array, W2: Array, b2: Array) -> Array:
    """Return relu(x W1 + b1) W2 + b2, where W1 is (C, F) and W2 is (F, C), for width C and inner width F.

    The weights are (inputs, outputs), the transpose of torch's.
    """
    values = {"up_proj.weight": W1.T, "up_proj.bias": b1, "down_proj.weight": W2.T, "down_proj.bias": b2}
    return blocks.FeedForward(Parameters(values, dtype=_dtype_of(x, W1, b1, W2, b2)), "relu", False).forward(x)


def feed_forward_with_residual(x: Array, W1: Array, b1: Array, W2: Array, b2: Array) -> Array:
    """Return x + feed_forward(x, W1, b1, W2, b2)."""
    return feed_forward(x, W1, b1, W2, b2) + x


class MultiHeadAttention:
    """Multi-head attention with randomly initialized weights and no mask."""

    def __init__(self, model_dim: int, num_heads: int):
        if num_heads < 1 or model_dim % num_heads:
            raise ValueError(f"num_heads={num_heads}: expected a divisor of model_dim={model_dim}")
        config = Config(vocab_size=1, n_encoder_layers=1, d_model=model_dim, n_heads=num_heads, d_ff=1)
        self.model_dim, self.num_heads = model_dim, num_heads
        self.params = _random_layer(config).at("self_attn")
        self.attention = attention.MultiHeadAttention(self.params, config)

    def forward(self, query: Array, key: Array, value: Array) -> Array:
        """Attend from `query` (B, T, C) to `key` and `value` (B, S, C) and return (B, T, C)."""
        ours, arrays = self.attention, {"query": query, "key": key, "value": value}
        for name, x in arrays.items():
            _check_width(name, x, self.model_dim)
        projections = zip((ours.q_proj, ours.k_proj, ours.v_proj), arrays.values(), strict=True)
        q, k, v = (split_heads(project.forward(x), self.num_heads) for project, x in projections)
        everything = np.ones((1, 1, 1, 1), dtype=bool)
        return ours.out_proj.forward(combine_heads(ours.core.forward(q, k, v, everything, None)))


class FeedForward:
    """The feed-forward network relu(x W1 + b1) W2 + b2 with randomly initialized weights."""

    def __init__(self, model_dim: int, ff_dim: int):
        self.model_dim = model_dim
        config = Config(vocab_size=1, n_encoder_layers=1, d_model=model_dim, n_heads=1, d_ff=ff_dim)
        self.params = _random_layer(config).at("ffn")
        self.network = blocks.FeedForward(self.params, "relu", gated=False)

    def forward(self, x: Array) -> Array:
        """Apply the network to every token of x (B, T, C) and return the same shape."""
        _check_width("x", x, self.model_dim)
        return self.network.forward(x)


class AddNorm:
    """Layer norm of the sum of a sublayer's input and output. The weight starts at 1 and the bias at 0."""

    def __init__(self, model_dim: int):
        self.params = Parameters({"weight": np.ones(model_dim), "bias": np.zeros(model_dim)})
        self.norm = blocks.LayerNorm(self.params, EPS)

    def forward(self, x: Array, sublayer_output: Array) -> Array:
        """Return the layer norm of x + sublayer_output, each (B, T, C)."""
        return self.norm.forward(x + sublayer_output)


class EncoderLayer:
    """Tutorial document 004's post-norm encoder layer: self-attention, add & norm, feed-forward, add & norm."""

    def __init__(self, model_dim: int, num_heads: int, ff_dim: int):
        self.mha = MultiHeadAttention(model_dim, num_heads)
        self.add_norm1 = AddNorm(model_dim)
        self.ffn = FeedForward(model_dim, ff_dim)
        self.add_norm2 = AddNorm(model_dim)

    def forward(self, x: Array) -> Array:
        """Apply the layer to x (B, T, C) and return the same shape."""
        x = self.add_norm1.forward(x, self.mha.forward(x, x, x))
        return self.add_norm2.forward(x, self.ffn.forward(x))


class TransformerEncoder:
    """Tutorial document 004's encoder: `num_layers` encoder layers in sequence, each with its own weights."""

    def __init__(self, num_layers: int, model_dim: int, num_heads: int, ff_dim: int):
        self.layers = [EncoderLayer(model_dim, num_heads, ff_dim) for _ in range(num_layers)]

    def forward(self, x: Array) -> Array:
        """Apply the encoder to x (B, T, C) and return the same shape."""
        for layer in self.layers:
            x = layer.forward(x)
        return x


def _random_layer(config: Config) -> Parameters:
    generator = np.random.default_rng(np.random.randint(2**31))
    return Parameters(initial_parameters(config, generator)).at("encoder.layers.0")


def _dtype_of(*arrays: Array) -> type:
    dtype = np.result_type(*arrays)
    return dtype.type if np.issubdtype(dtype, np.floating) else np.float64


def _check_width(name: str, x: Array, width: int) -> None:
    if x.ndim != 3 or x.shape[-1] != width:
        raise ValueError(f"{name} has shape {x.shape}: expected (batch, length, {width})")
