"""Document 002: a pre-norm encoder-decoder with a factory function, with the document's own names and arguments.

The document shows some classes whole, of others a method, and names the rest. Arguments that it doesn't show are ours:
they have the names and the order of `build_transformer`.
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
    """Rows of a table, times √d_model."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) -> (B, T, C)."""
        return super().forward(x)


class PositionalEncoding(blocks.PositionalEncoding):
    """Adds the sinusoids, then drops. Its arguments are those that `build_transformer` passes."""

    def __init__(self, d_model: int, seq_len: int, dropout: float):
        super().__init__(d_model, max_len=seq_len, dropout=dropout)


class MultiHeadAttention(blocks.MultiHeadAttention):
    """Multi-head attention with dropout on the weights. It returns the output alone."""

    def __init__(self, d_model: int, h: int, dropout: float):
        super().__init__(d_model, h, dropout)


class FeedForwardBlock(blocks.FeedForwardBlock):
    """Linear, ReLU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout: float):
        super().__init__(d_model, d_ff, dropout)


class EncoderLayer(blocks.DocumentLayer):
    """Self-attention and feed-forward, pre-norm, with ReLU."""

    style, drops_attention = PRE_NORM, True

    def __init__(self, d_model: int, h: int, d_ff: int, dropout: float):
        super().__init__(d_model, h, d_ff, dropout)

    def forward(self, x: Tensor, src_mask: Tensor | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.encode(x, src_mask)


class DecoderBlock(blocks.DocumentLayer):
    """Masked self-attention, cross-attention and feed-forward, pre-norm, with ReLU."""

    style, drops_attention, cross = PRE_NORM, True, True

    def __init__(self, d_model: int, h: int, d_ff: int, dropout: float):
        super().__init__(d_model, h, d_ff, dropout)

    def forward(self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """(B, T, C), (B, S, C) -> (B, T, C)."""
        return self.decode(x, encoder_output, src_mask, tgt_mask)


class Encoder(nn.Module):
    """N layers and a final norm. Positions are added before it."""

    def __init__(self, d_model: int, N: int, h: int, d_ff: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(d_model, h, d_ff, dropout) for _ in range(N)])
        self.norm = LayerNormalization(d_model)

    def forward(self, x: Tensor, src_mask: Tensor | None) -> Tensor:
        """(B, S, C) -> (B, S, C)."""
        for layer in self.layers:
            x = layer(x, src_mask)
        return self.norm(x)


class Decoder(nn.Module):
    """N blocks and a final norm. Positions are added before it."""

    def __init__(self, d_model: int, N: int, h: int, d_ff: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList([DecoderBlock(d_model, h, d_ff, dropout) for _ in range(N)])
        self.norm = LayerNormalization(d_model)

    def forward(self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """(B, T, C), (B, S, C) -> (B, T, C)."""
        for layer in self.layers:
            x = layer(x, encoder_output, src_mask, tgt_mask)
        return self.norm(x)
