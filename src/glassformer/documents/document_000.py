"""Document 000, the paper's Transformer in torch, with the document's own names, arguments and return values.

It is one of the five tutorial documents that this project implements (`docs/documents.md`).
"""
# ruff: noqa: N803  # Q, K and V are the document's argument names

import torch
from torch import Tensor

from glassformer.documents import blocks, models

__all__ = [
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Transformer",
    "test_transformer",
]


class PositionalEncoding(blocks.PositionalEncoding):
    """Add sinusoidal positions, then apply dropout. Arguments are in the order of tutorial document 000."""

    def __init__(self, d_model: int, dropout: float, max_len: int = 5000):
        super().__init__(d_model, max_len=max_len, dropout=dropout)


class MultiHeadAttention(blocks.MultiHeadAttention):
    """Tutorial document 000's multi-head attention, without dropout. It returns the output without the weights."""

    def __init__(self, d_model: int, num_heads: int):
        super().__init__(d_model, num_heads, dropout=0.0)

    def scaled_dot_product_attention(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attention output per head: Q (B, H, T, D), K and V (B, H, S, D) -> (B, H, T, D).

        `mask` is 1 or True where attention is allowed and broadcasts to (B, H, T, S).
        """
        return self.attend(Q, K, V, mask=self.allowed(Q, K, mask), bias=None)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Attend from Q (B, T, C) to K and V (B, S, C) and return (B, T, C).

        `mask` is 1 or True where attention is allowed and broadcasts to (B, H, T, S).
        """
        return self.merge(self.scaled_dot_product_attention(*self.project(Q, K, V), mask))


class FeedForward(blocks.FeedForward):
    """Tutorial document 000's feed-forward network: linear, ReLU, dropout of 0.1, linear."""

    def __init__(self, d_model: int, d_ff: int = 2048):
        super().__init__(d_model, d_ff)


class EncoderLayer(blocks.EncoderLayer):
    """Tutorial document 000's encoder layer: self-attention and feed-forward.

    It has post-norm, d_ff=2048 and dropout of 0.1.
    """

    def __init__(self, d_model: int, num_heads: int):
        super().__init__(d_model, num_heads)


class DecoderLayer(blocks.DocumentLayer):
    """Tutorial document 000's decoder layer: self-attention, cross-attention and feed-forward.

    It has post-norm, d_ff=2048 and dropout of 0.1.
    """

    cross = True

    def __init__(self, d_model: int, num_heads: int):
        super().__init__(d_model, num_heads)

    def forward(self, x: Tensor, enc_output: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """Apply the layer to x (B, T, C) and return the same shape.

        `enc_output` is the encoder's output (B, S, C). The masks are 1 or True where attention is allowed: `src_mask`
        broadcasts to (B, 1, T, S), `tgt_mask` to (B, 1, T, T).
        """
        return self.decode(x, enc_output, src_mask, tgt_mask)


class Transformer(models.Transformer):
    """Tutorial document 000's encoder-decoder, with post-norm, d_ff=2048 and dropout of 0.1."""

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
    ):
        super().__init__(src_vocab_size, tgt_vocab_size, d_model, num_heads, num_layers)


def test_transformer() -> None:
    """Run tutorial document 000's six checks at its sizes, print each result, and raise AssertionError if one fails."""
    torch.manual_seed(42)
    batch, length, width, heads, vocab = 2, 10, 512, 8, 100
    src, tgt = (torch.randint(0, vocab, (batch, length)) for _ in range(2))
    src_mask = torch.ones(batch, 1, 1, length)
    tgt_mask = torch.ones(length, length).tril().expand(batch, 1, length, length)
    x = torch.randn(batch, length, width)

    encoded = PositionalEncoding(width, dropout=0.1)(x)
    _check("1. PositionalEncoding", encoded.shape == x.shape, f"{tuple(x.shape)} -> {tuple(encoded.shape)}")
    attended = MultiHeadAttention(width, heads)(x, x, x)
    _check("2. MultiHeadAttention", attended.shape == x.shape, f"{tuple(x.shape)} -> {tuple(attended.shape)}")
    memory = EncoderLayer(width, heads)(x)
    changed = memory.shape == x.shape and not torch.allclose(memory, x, atol=1e-4)
    _check("3. EncoderLayer", changed, f"{tuple(x.shape)} -> {tuple(memory.shape)}, changed")
    decoded = DecoderLayer(width, heads)(x, memory, src_mask, tgt_mask)
    _check("4. DecoderLayer", decoded.shape == x.shape, f"{tuple(x.shape)} -> {tuple(decoded.shape)}")

    model = Transformer(vocab, vocab, d_model=width, num_heads=heads, num_layers=2)
    logits = model(src, tgt, src_mask, tgt_mask)
    logits.sum().backward()
    learns = all(parameter.grad is not None for parameter in model.parameters())
    _check("5. Transformer", logits.shape == (batch, length, vocab) and learns, f"{tuple(logits.shape)}, gradients")
    _check("6. parameters", model.n_parameters() == 14_866_532, f"{model.n_parameters():,}")


def _check(name: str, holds: bool, found: str) -> None:
    if not holds:
        raise AssertionError(f"{name} failed: {found}")
    print(f"{name}: {found}")
