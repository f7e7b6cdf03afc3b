"""Document 001: its code equals that of document 000."""

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
