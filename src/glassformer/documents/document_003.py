"""Document 003, a handbook with BERT, GPT and T5 models, with the document's own names, arguments and return values.

It is one of the five tutorial documents that this project implements (`docs/documents.md`).
"""
# ruff: noqa: N803  # Q, K and V are the document's argument names

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.documents import blocks, models
from glassformer.documents.blocks import (
    Decoder,
    Encoder,
    LayerNormalization,
    PositionWiseFeedForward,
    TokenEmbedding,
)
from glassformer.documents.models import BERTModel, GPTModel, T5Model
from glassformer.documents.styles import MODERN
from glassformer.nn import attention_weights as weights_of
from glassformer.nn.dropout import drop
from glassformer.nn.multi_head_attention import merge_heads, split_heads

__all__ = [
    "BERTModel",
    "Decoder",
    "DecoderBlock",
    "Encoder",
    "EncoderBlock",
    "GPTModel",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionWiseFeedForward",
    "PositionalEncoding",
    "ResidualConnection",
    "T5Model",
    "TokenEmbedding",
    "Transformer",
    "visualize_attention",
    "visualize_positional_encoding",
]


class PositionalEncoding(blocks.PositionalEncoding):
    """Add sinusoidal positions, then apply dropout. The arguments are those of tutorial document 003."""

    def __init__(self, d_model: int, max_seq_length: int = 5000, dropout: float = 0.1):
        super().__init__(d_model, max_len=max_seq_length, dropout=dropout)


class MultiHeadAttention(blocks.MultiHeadAttention):
    """Tutorial document 003's multi-head attention, with dropout on the weights.

    It returns the output and the weights.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1):
        super().__init__(d_model, num_heads, dropout)
        self.d_k = self.head_dim

    def split_heads(self, x: Tensor) -> Tensor:
        """Split the last dimension into heads: (B, T, C) -> (B, H, T, D)."""
        return split_heads(x, self.n_heads)

    def merge_heads(self, x: Tensor) -> Tensor:
        """Concatenate the heads: (B, H, T, D) -> (B, T, C)."""
        return merge_heads(x)

    def scaled_dot_product_attention(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the output per head (B, H, T, D) and the weights (B, H, T, S) of attention from Q to K and V.

        Q is (B, H, T, D), K and V are (B, H, S, D). `mask` is 1 or True where attention is allowed and broadcasts to
        (B, H, T, S). The weights are those that multiply V: in training, dropout has been applied to them.
        """
        weights = weights_of(Q, K, mask=self.allowed(Q, K, mask), bias=None, scale=self.attend.scale)
        if self.training:
            weights = drop(weights, self.attend.dropout)
        return weights @ V, weights

    def forward(  # type: ignore[override]  # always a pair
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the output (B, T, C) and the weights (B, H, T, S) of attention from `query` to `key` and `value`.

        `query` is (B, T, C), `key` and `value` are (B, S, C). `mask` is 1 or True where attention is allowed and
        broadcasts to (B, H, T, S).
        """
        context, weights = self.scaled_dot_product_attention(*self.project(query, key, value), mask)
        return self.merge(context), weights


class ResidualConnection(blocks.ResidualConnection):
    """Tutorial document 003's pre-norm residual connection: x + dropout(sublayer(norm(x)))."""


class EncoderBlock(blocks.EncoderBlock):
    """Tutorial document 003's encoder layer: self-attention and feed-forward, with pre-norm and GELU."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1):
        super().__init__(d_model, num_heads, d_ff, dropout)


class DecoderBlock(blocks.DecoderBlock):
    """Tutorial document 003's decoder layer, with pre-norm and GELU: self-attention, cross-attention, feed-forward."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1):
        super().__init__(d_model, num_heads, d_ff, dropout)


class Transformer(models.Transformer):
    """Tutorial document 003's encoder-decoder, with pre-norm, GELU and scaled embeddings."""

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        num_layers: int = 6,
        dropout: float = 0.1,
        max_seq_len: int = 5000,
    ):
        super().__init__(
            src_vocab_size,
            tgt_vocab_size,
            d_model,
            num_heads,
            num_layers,
            d_ff=d_ff,
            dropout=dropout,
            max_seq_len=max_seq_len,
            attention_dropout=dropout,
            scale_embeddings=True,
            **MODERN,
        )


def visualize_positional_encoding() -> None:
    """Draw a heat map of the first 20 positions and dimensions of a positional encoding of width 128.

    It is written to `positional_encoding.png` in the current folder and replaces an earlier file, as in document 003.
    """
    encoding = PositionalEncoding(128, 100).eval()  # the document draws in training mode, with a tenth dropped
    values = encoding(torch.zeros(1, 100, 128))[0, :20, :20]
    figure, axes = _heat_map(values, (12, 8))
    axes.set(xlabel="Dimension", ylabel="Position", title="Positional Encoding Visualization")
    figure.savefig("positional_encoding.png")


def visualize_attention(attention_weights: Tensor, tokens: Sequence[str]) -> None:
    """Draw a heat map of the first head for the first sentence of attention weights (B, H, T, T).

    `tokens` are the T labels of both axes. The picture is written to `self_attention_visualization.png` in the current
    folder and replaces an earlier file, as in document 003.
    """
    if attention_weights.dim() != 4 or attention_weights.shape[2:] != (len(tokens), len(tokens)):
        raise ValueError(
            f"attention_weights has shape {tuple(attention_weights.shape)}: expected (batch, heads, {len(tokens)}, "
            f"{len(tokens)}), a row and a column for each of the {len(tokens)} tokens"
        )
    figure, axes = _heat_map(attention_weights[0, 0], (10, 8))
    labels = [str(token).replace("$", r"\$") for token in tokens]  # a dollar sign would open mathematics
    axes.set_xticks(range(len(tokens)), labels, rotation=90)
    axes.set_yticks(range(len(tokens)), labels)
    axes.set(xlabel="Key Tokens", ylabel="Query Tokens", title="Self-Attention Weights")
    figure.savefig("self_attention_visualization.png")


def _heat_map(values: Tensor, size: tuple[int, int]) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'glassformer[plot]'") from error
    figure = Figure(figsize=size)
    axes = figure.subplots()
    image = axes.imshow(values.detach().float().cpu().numpy(), cmap="viridis", aspect="auto")
    figure.colorbar(image, ax=axes)
    return figure, axes
