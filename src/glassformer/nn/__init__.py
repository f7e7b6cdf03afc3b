"""PyTorch building blocks of Transformers.

They depend on sizes and tensors only, not on files, configs or tasks. Shapes in docstrings and comments use these
letters:

    B batch     T query length     S key length     C width (d_model)     V vocabulary
    H heads     G key-value heads  D head size      F feed-forward width

A line that changes the rank or the order of a tensor's dimensions ends with the new shape, as in `# (B, H, T, D)`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.nn.attention_backends import Attend, attend, attention_weights
    from glassformer.nn.attention_capture import CapturedAttention, capture_attention
    from glassformer.nn.cache import KVCache
    from glassformer.nn.dropout import Dropout
    from glassformer.nn.embeddings import Embeddings
    from glassformer.nn.feedforward import FeedForward
    from glassformer.nn.layers import Layer, Sublayer
    from glassformer.nn.masks import Mask, as_mask
    from glassformer.nn.multi_head_attention import MultiHeadAttention
    from glassformer.nn.norms import MeanStdNorm, make_norm
    from glassformer.nn.positions import Alibi, LearnedPositions, RelativeBias, Rotary, SinusoidalPositions, sinusoids
    from glassformer.nn.stacks import Stack
else:
    from glassformer.base.lazy import lazy_names

    __getattr__ = lazy_names(
        __name__,
        {
            "attention_backends": ["Attend", "attend", "attention_weights"],
            "multi_head_attention": ["MultiHeadAttention"],
            "cache": ["KVCache"],
            "attention_capture": ["CapturedAttention", "capture_attention"],
            "dropout": ["Dropout"],
            "embeddings": ["Embeddings"],
            "feedforward": ["FeedForward"],
            "layers": ["Layer", "Sublayer"],
            "masks": ["Mask", "as_mask"],
            "norms": ["MeanStdNorm", "make_norm"],
            "positions": ["Alibi", "LearnedPositions", "RelativeBias", "Rotary", "SinusoidalPositions", "sinusoids"],
            "stacks": ["Stack"],
        },
    )

__all__ = [
    "Alibi",
    "Attend",
    "CapturedAttention",
    "Dropout",
    "Embeddings",
    "FeedForward",
    "KVCache",
    "Layer",
    "LearnedPositions",
    "Mask",
    "MeanStdNorm",
    "MultiHeadAttention",
    "RelativeBias",
    "Rotary",
    "SinusoidalPositions",
    "Stack",
    "Sublayer",
    "as_mask",
    "attend",
    "attention_weights",
    "capture_attention",
    "make_norm",
    "sinusoids",
]
