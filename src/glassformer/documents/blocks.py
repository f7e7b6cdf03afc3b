"""The documents' blocks, as `glassformer` exports them: our blocks with the documents' calling convention.

Where two documents use one name differently, these classes take both. `document_000.py` to `document_004.py` have each
document's exact signatures, over these classes.
"""

import torch
from torch import Tensor, nn

from glassformer.documents.styles import MODERN, PAPER, document_mask
from glassformer.models.blocks_from_config import make_layer
from glassformer.models.config import ModelConfig
from glassformer.nn import Embeddings, Mask, MeanStdNorm, SinusoidalPositions, Sublayer, attend, sinusoids
from glassformer.nn.dropout import Dropout
from glassformer.nn.feedforward import FeedForward as OurFeedForward
from glassformer.nn.multi_head_attention import MultiHeadAttention as OurMultiHeadAttention
from glassformer.nn.tensor_checks import check_length, check_width


class TokenEmbedding(nn.Module):
    """Document 003's scaled embedding: rows of a table, times √embedding_dim."""

    def __init__(self, vocab_size: int, embedding_dim: int):
        super().__init__()
        self.embedding_dim = embedding_dim
        self.embeddings = Embeddings(vocab_size, embedding_dim, scale=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, C)."""
        self.embeddings.check("tokens", tokens)
        return self.embeddings(tokens, tokens)


class InputEmbedding(TokenEmbedding):
    """Document 002's `TokenEmbedding`, with its arguments in the other order."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__(vocab_size, d_model)
        self.d_model, self.vocab_size = d_model, vocab_size


class PositionalEncoding(nn.Module):
    """Adds sinusoidal positions, then applies dropout.

    000 passes (d_model, dropout, max_len), 002 and 003 (d_model, max_len, dropout). An integer can only be the length
    and a fraction only the dropout, so both orders work, and so do all their keywords.
    """

    def __init__(
        self,
        d_model: int,
        *in_order: float,
        max_len: int = 5000,
        max_seq_length: int | None = None,
        dropout: float = 0.1,
    ):
        super().__init__()
        if len(in_order) > 2:
            raise TypeError(
                f"PositionalEncoding takes d_model, a length and a dropout: {len(in_order)} more were given"
            )
        for value in in_order:
            if isinstance(value, int) and value > 0:
                max_len = value
            else:
                dropout = value
        self.d_model, self.max_len = d_model, max_len if max_seq_length is None else max_seq_length
        self.positions = SinusoidalPositions(self.max_len, d_model)
        self.dropout = Dropout(dropout)

    @property
    def pe(self) -> Tensor:
        """Return the table, (1, max_len, C). It is computed, so it is not in the state dict."""
        return sinusoids(self.max_len, self.d_model)[None].float()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        check_width("x", x, self.d_model)
        check_length("x", x.shape[1], self.max_len)
        here = torch.arange(x.shape[1], device=x.device)[None]
        return self.dropout(x + self.positions(here, x.dtype))


class MultiHeadAttention(OurMultiHeadAttention):
    """Called as (query, key, value, mask). 003 always returns weights too; here they come with need_weights=True."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1):
        super().__init__(d_model, num_heads, dropout=dropout)
        self.num_heads = num_heads

    def forward(  # type: ignore[override]  # the documents' signature
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """(B, T, C), (B, S, C), (B, S, C) -> (B, T, C), and the weights (B, H, T, S) where asked for."""
        q, k, v = self.project(query, key, value)
        allowed = self.allowed(q, k, mask)
        if not need_weights:
            return self.merge(self.attend(q, k, v, mask=allowed, bias=None))
        dropout = self.attend.dropout if self.training else 0.0
        output, weights = attend(q, k, v, mask=allowed, scale=self.attend.scale, dropout=dropout, need_weights=True)
        return self.merge(output), weights

    def allowed(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Mask:
        """A document's mask as ours, for queries (B, H, T, D) and keys (B, H, S, D)."""
        return Mask(allowed=document_mask("mask", mask, (len(q), self.n_heads, q.shape[2], k.shape[2])))


class FeedForward(OurFeedForward):
    """The feed-forward block of documents 000 and 001: linear, ReLU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int = 2048, dropout: float = 0.1):
        super().__init__(d_model, d_ff, activation="relu", dropout=dropout)


class FeedForwardBlock(FeedForward):
    """Document 002's feed-forward block, identical to `FeedForward`: linear, ReLU, dropout, linear."""


class PositionWiseFeedForward(OurFeedForward):
    """Document 003's feed-forward block: linear, GELU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__(d_model, d_ff, activation="gelu", dropout=dropout)


class LayerNormalization(MeanStdNorm):
    """Documents 002's and 003's norm: (x - mean) / (std + eps), scaled and shifted."""

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__(d_model, eps)


class ResidualConnection(Sublayer):
    """Documents 002's and 003's pre-norm residual: x + dropout(sublayer(norm(x)))."""

    def __init__(self, d_model: int, dropout: float = 0.1):
        super().__init__(LayerNormalization(d_model), placement="pre", dropout=dropout)


class ProjectionLayer(nn.Module):
    """Document 002's projection to the vocabulary."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, V)."""
        return self.proj(x)


class DocumentLayer(nn.Module):
    """Base of the documents' layers: one `Layer` of ours, in a document's style."""

    style, drops_attention, cross = PAPER, False, False

    def __init__(self, d_model: int, num_heads: int, d_ff: int = 2048, dropout: float = 0.1):
        super().__init__()
        config = ModelConfig(
            vocab_size=1,
            n_encoder_layers=1,
            d_model=d_model,
            n_heads=num_heads,
            d_ff=d_ff,
            dropout=dropout,
            activation_dropout=dropout,
            attention_dropout=dropout if self.drops_attention else 0.0,
            **self.style,
        )
        self.layer = make_layer(config, cross=self.cross, backend="sdpa")

    def encode(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        shape = len(x), 1, x.shape[1], x.shape[1]
        return self.layer(x, mask=Mask(allowed=document_mask("mask", mask, shape)))

    def decode(self, x: Tensor, memory: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """(B, T, C), (B, S, C) -> (B, T, C)."""
        shape = len(x), 1, x.shape[1], x.shape[1]
        mask = Mask(allowed=document_mask("tgt_mask", tgt_mask, shape))
        memory_mask = Mask(allowed=document_mask("src_mask", src_mask, (*shape[:3], memory.shape[1])))
        return self.layer(x, mask=mask, memory=memory, memory_mask=memory_mask)


class EncoderLayer(DocumentLayer):
    """The encoder layer of documents 000 and 001: self-attention and feed-forward, post-norm."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.encode(x, mask)


class EncoderBlock(EncoderLayer):
    """Document 003's encoder layer: pre-norm, with GELU. The norm comes before the attention, as its text says."""

    style, drops_attention = MODERN, True


class DecoderLayer(DocumentLayer):
    """The decoder layer of documents 000 and 001: masked self-attention, cross-attention, feed-forward, post-norm."""

    cross = True

    def forward(
        self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """(B, T, C), (B, S, C) -> (B, T, C)."""
        return self.decode(x, encoder_output, src_mask, tgt_mask)


class DecoderBlock(DecoderLayer):
    """Document 003's decoder layer: pre-norm, with GELU."""

    style, drops_attention = MODERN, True


class DocumentStack(nn.Module):
    """Base of 003's encoder and decoder: positions, blocks and a final norm over embeddings."""

    block: type[DocumentLayer]

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = 0.1, max_seq_len: int = 5000
    ):
        super().__init__()
        self.positional_encoding = PositionalEncoding(d_model, max_seq_len, dropout)
        self.layers = nn.ModuleList([self.block(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)])
        self.norm = LayerNormalization(d_model)


class Encoder(DocumentStack):
    """Document 003's encoder."""

    block = EncoderBlock

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, C) -> (B, S, C)."""
        x = self.positional_encoding(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(DocumentStack):
    """Document 003's decoder, which also looks at the encoder's output."""

    block = DecoderBlock

    def forward(
        self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """(B, T, C), (B, S, C) -> (B, T, C)."""
        x = self.positional_encoding(x)
        for layer in self.layers:
            x = layer(x, encoder_output, src_mask, tgt_mask)
        return self.norm(x)
