"""The classes of the five tutorial documents that this project implements, with their names, arguments and defaults.

They are built from our own blocks. The documents are called 000 to 004. `docs/documents.md` maps each of their classes
to ours, and lists the documents' mistakes and how they are handled.
"""

from glassformer.documents.blocks import (
    Decoder,
    DecoderBlock,
    DecoderLayer,
    Encoder,
    EncoderBlock,
    EncoderLayer,
    FeedForward,
    FeedForwardBlock,
    InputEmbedding,
    LayerNormalization,
    MultiHeadAttention,
    PositionalEncoding,
    PositionWiseFeedForward,
    ProjectionLayer,
    ResidualConnection,
    TokenEmbedding,
)
from glassformer.documents.models import BERTModel, GPTModel, T5Model, Transformer, build_transformer
from glassformer.documents.weights import load_document_weights

__all__ = [
    "BERTModel",
    "Decoder",
    "DecoderBlock",
    "DecoderLayer",
    "Encoder",
    "EncoderBlock",
    "EncoderLayer",
    "FeedForward",
    "FeedForwardBlock",
    "GPTModel",
    "InputEmbedding",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionWiseFeedForward",
    "PositionalEncoding",
    "ProjectionLayer",
    "ResidualConnection",
    "T5Model",
    "TokenEmbedding",
    "Transformer",
    "build_transformer",
    "load_document_weights",
]
