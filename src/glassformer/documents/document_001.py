"""Document 001, whose code is the same as that of document 000.

It is one of the five tutorial documents that this project implements (`docs/documents.md`).
"""

from glassformer.documents.document_000 import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEncoding,
    Transformer,
    test_transformer,
)

__all__ = [
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Transformer",
    "test_transformer",
]
