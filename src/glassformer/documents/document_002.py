"""Document 002, a pre-norm encoder-decoder with a factory function, with the document's own names and arguments.

It is one of the five tutorial documents that this project implements (`docs/documents.md`). The document shows some
classes in full, one method of others, and only the names of the rest. For arguments that it does not show, we chose the
names and the order of `build_transformer`.
"""
# ruff: noqa: N803  # N is the document's name for the number of layers

from torch import Tensor, nn

from glassformer.documents import blocks
from glassformer.documents.blocks import LayerNormalization, ProjectionLayer, ResidualConnection
from glassformer.documents.models import Transformer, build_transformer
from glassformer.documents.styles import PRE_NORM

__all__ = [
    "Decoder",
    "DecoderBlock",
    "Encoder",
    "EncoderLayer",
    "FeedForwardBlock",
    "InputEmbedding",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionalEncoding",
    "ProjectionLayer",
    "ResidualConnection",
    "Transformer",
    "build_transformer",
]


class InputEmbedding(blocks.InputEmbedding):
    """Tutorial document 002's token embedding: rows of a table, times √d_model."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled embeddings of token ids: (B, T) -> (B, T, C)."""
        return super().forward(x)


class PositionalEncoding(blocks.PositionalEncoding):
    """Add sinusoidal positions, then apply dropout. The arguments are in the order of tutorial document 002."""

    def __init__(self, d_model: int, seq_len: int, dropout: float):
        super().__init__(d_model, max_len=seq_len, dropout=dropout)


class MultiHeadAttention(blocks.MultiHeadAttention):
    """Tutorial document 002's multi-head attention, with dropout on the weights. It returns the output alone."""

    def __init__(self, d_model: int, h: int, dropout: float):
        super().__init__(d_model, h, dropout)


class FeedForwardBlock(blocks.FeedForwardBlock):
    """Tutorial document 002's feed-forward network: linear, ReLU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout: float):
        super().__init__(d_model, d_ff, dropout)


class EncoderLayer(blocks.DocumentLayer):
    """Tutorial document 002's encoder layer: self-attention and feed-forward, with pre-norm and ReLU."""

    style, drops_attention = PRE_NORM, True

    def __init__(self, d_model: int, h: int, d_ff: int, dropout: float):
        super().__init__(d_model, h, d_ff, dropout)

    def forward(self, x: Tensor, src_mask: Tensor | None) -> Tensor:
        """Apply the layer to x (B, T, C) and return the same shape.

        `src_mask` is 1 or True where attention is allowed and broadcasts to (B, 1, T, T).
        """
        return self.encode(x, src_mask)


class DecoderBlock(blocks.DocumentLayer):
    """Tutorial document 002's decoder layer, with pre-norm and ReLU: self-attention, cross-attention, feed-forward."""

    style, drops_attention, cross = PRE_NORM, True, True

    def __init__(self, d_model: int, h: int, d_ff: int, dropout: float):
        super().__init__(d_model, h, d_ff, dropout)

    def forward(self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """Apply the layer to x (B, T, C) and return the same shape.

        `encoder_output` is the encoder's output (B, S, C). The masks are 1 or True where attention is allowed:
        `src_mask` broadcasts to (B, 1, T, S), `tgt_mask` to (B, 1, T, T).
        """
        return self.decode(x, encoder_output, src_mask, tgt_mask)


class Encoder(nn.Module):
    """Tutorial document 002's encoder: N layers and a final norm. Its input already includes the positions."""

    def __init__(self, d_model: int, N: int, h: int, d_ff: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(d_model, h, d_ff, dropout) for _ in range(N)])
        self.norm = LayerNormalization(d_model)

    def forward(self, x: Tensor, src_mask: Tensor | None) -> Tensor:
        """Apply the encoder to x (B, S, C) and return the same shape.

        `src_mask` is 1 or True where attention is allowed and broadcasts to (B, 1, S, S).
        """
        for layer in self.layers:
            x = layer(x, src_mask)
        return self.norm(x)


class Decoder(nn.Module):
    """Tutorial document 002's decoder: N blocks and a final norm. Its input already includes the positions."""

    def __init__(self, d_model: int, N: int, h: int, d_ff: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList([DecoderBlock(d_model, h, d_ff, dropout) for _ in range(N)])
        self.norm = LayerNormalization(d_model)

    def forward(self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """Apply the decoder to x (B, T, C) and return the same shape.

        `encoder_output` is the encoder's output (B, S, C). The masks are 1 or True where attention is allowed:
        `src_mask` broadcasts to (B, 1, T, S), `tgt_mask` to (B, 1, T, T).
        """
        for layer in self.layers:
            x = layer(x, encoder_output, src_mask, tgt_mask)
        return self.norm(x)
