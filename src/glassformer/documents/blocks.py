"""The torch blocks of documents 000 to 003, of the five tutorial documents that this project implements.

They are our blocks with the documents' calling convention, and `glassformer` exports them. Where two documents use one
name differently, the class here accepts both uses. `document_000.py` to `document_003.py` derive classes from these
that have each document's exact signatures.
"""

from collections.abc import Callable

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
    """Tutorial document 003's token embedding: rows of a table, times √embedding_dim."""

    def __init__(self, vocab_size: int, embedding_dim: int):
        super().__init__()
        self.embedding_dim = embedding_dim
        self.embeddings = Embeddings(vocab_size, embedding_dim, scale=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scaled embeddings of token ids: (B, T) -> (B, T, C)."""
        self.embeddings.check("tokens", tokens)
        return self.embeddings(tokens, tokens)


class InputEmbedding(TokenEmbedding):
    """Tutorial document 002's token embedding: `TokenEmbedding` with the arguments (d_model, vocab_size)."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__(vocab_size, d_model)
        self.d_model, self.vocab_size = d_model, vocab_size


class PositionalEncoding(nn.Module):
    """Add sinusoidal positions, then apply dropout.

    Tutorial document 000 passes (d_model, dropout, max_len), documents 002 and 003 pass (d_model, max_len, dropout).
    Both orders work: in `in_order`, a positive integer is the length, and any other number is the dropout. The
    documents' keywords work too; `max_seq_length` is document 003's name for `max_len`.
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
        """The table of sinusoids, (1, max_len, C). It is computed when asked for, so it is not in the state dict."""
        return sinusoids(self.max_len, self.d_model)[None].float()

    def forward(self, x: Tensor) -> Tensor:
        """Add the encodings of positions 0 to T - 1 to embeddings x (B, T, C); the shape stays the same."""
        check_width("x", x, self.d_model)
        check_length("x", x.shape[1], self.max_len)
        here = torch.arange(x.shape[1], device=x.device)[None]
        return self.dropout(x + self.positions(here, x.dtype))


class MultiHeadAttention(OurMultiHeadAttention):
    """Multi-head attention, called as (query, key, value, mask) as in the tutorial documents.

    It returns the output alone, and with `need_weights=True` the output and the attention weights. The class in
    tutorial document 003 always returns both.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1):
        super().__init__(d_model, num_heads, dropout=dropout)
        self.num_heads = num_heads

    def forward(  # type: ignore[override]  # the documents' signature
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Attend from `query` (B, T, C) to `key` and `value` (B, S, C) and return (B, T, C).

        `mask` is 1 or True where attention is allowed and broadcasts to (B, H, T, S). With `need_weights` the result is
        a pair of the output and the weights (B, H, T, S).
        """
        q, k, v = self.project(query, key, value)
        allowed = self.allowed(q, k, mask)
        if not need_weights:
            return self.merge(self.attend(q, k, v, mask=allowed, bias=None))
        dropout = self.attend.dropout if self.training else 0.0
        output, weights = attend(q, k, v, mask=allowed, scale=self.attend.scale, dropout=dropout, need_weights=True)
        return self.merge(output), weights

    def allowed(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Mask:
        """Return a tutorial document's mask as our `Mask`, for queries (B, H, T, D) and keys (B, H, S, D)."""
        return Mask(allowed=document_mask("mask", mask, (len(q), self.n_heads, q.shape[2], k.shape[2])))


class DocumentFeedForward(OurFeedForward):
    """Base class of the documents' feed-forward networks, whose `forward` takes x only."""

    takes_kernels = False

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Apply the network to every token of x (B, T, C) and return the same shape."""
        return super().forward(x)


class FeedForward(DocumentFeedForward):
    """The feed-forward network of tutorial documents 000 and 001: linear, ReLU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int = 2048, dropout: float = 0.1):
        super().__init__(d_model, d_ff, activation="relu", dropout=dropout)


class FeedForwardBlock(FeedForward):
    """Tutorial document 002's feed-forward network, identical to `FeedForward`: linear, ReLU, dropout, linear."""


class PositionWiseFeedForward(DocumentFeedForward):
    """Tutorial document 003's feed-forward network: linear, GELU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__(d_model, d_ff, activation="gelu", dropout=dropout)


class LayerNormalization(MeanStdNorm):
    """The norm of tutorial documents 002 and 003: weight * (x - mean) / (std + eps) + bias, over the last dimension."""

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__(d_model, eps)


class ResidualConnection(Sublayer):
    """The pre-norm residual connection of tutorial documents 002 and 003: x + dropout(sublayer(norm(x)))."""

    def __init__(self, d_model: int, dropout: float = 0.1):
        super().__init__(LayerNormalization(d_model), placement="pre", dropout=dropout)

    takes_kernels = False

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        """Apply the function `sublayer` to x (B, T, C) inside the residual connection and return the same shape."""
        return super().forward(x, sublayer)


class ProjectionLayer(nn.Module):
    """Tutorial document 002's output layer: a linear projection from the model width to the vocabulary."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of hidden states: (B, T, C) -> (B, T, V)."""
        return self.proj(x)


class DocumentLayer(nn.Module):
    """Base class of the tutorial documents' layers, which wraps one `glassformer.nn.Layer`.

    Subclasses set `style` (norm and activation, see `styles.py`), `drops_attention` (whether `dropout` also drops
    attention weights) and `cross` (whether the layer has cross-attention).
    """

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
        """Apply the layer without cross-attention to x (B, T, C) and return the same shape.

        `mask` is 1 or True where attention is allowed and broadcasts to (B, 1, T, T).
        """
        shape = len(x), 1, x.shape[1], x.shape[1]
        return self.layer(x, mask=Mask(allowed=document_mask("mask", mask, shape)))

    def decode(self, x: Tensor, memory: Tensor, src_mask: Tensor | None, tgt_mask: Tensor | None) -> Tensor:
        """Apply the layer with cross-attention to x (B, T, C) and return the same shape.

        `memory` is the encoder's output (B, S, C). The masks are 1 or True where attention is allowed: `src_mask`
        broadcasts to (B, 1, T, S), `tgt_mask` to (B, 1, T, T).
        """
        shape = len(x), 1, x.shape[1], x.shape[1]
        mask = Mask(allowed=document_mask("tgt_mask", tgt_mask, shape))
        memory_mask = Mask(allowed=document_mask("src_mask", src_mask, (*shape[:3], memory.shape[1])))
        return self.layer(x, mask=mask, memory=memory, memory_mask=memory_mask)


class EncoderLayer(DocumentLayer):
    """The encoder layer of tutorial documents 000 and 001: self-attention and feed-forward, with post-norm."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the layer to x (B, T, C) and return the same shape.

        `mask` is 1 or True where attention is allowed and broadcasts to (B, 1, T, T).
        """
        return self.encode(x, mask)


class EncoderBlock(EncoderLayer):
    """Tutorial document 003's encoder layer: self-attention and feed-forward, with pre-norm and GELU.

    The norm comes before the attention, as the document's text says. The document's own code skips this norm.
    """

    style, drops_attention = MODERN, True


class DecoderLayer(DocumentLayer):
    """The decoder layer of tutorial documents 000 and 001: self-attention, cross-attention and feed-forward.

    It has post-norm.
    """

    cross = True

    def forward(
        self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """Apply the layer to x (B, T, C) and return the same shape.

        `encoder_output` is the encoder's output (B, S, C). The masks are 1 or True where attention is allowed:
        `src_mask` broadcasts to (B, 1, T, S), `tgt_mask` to (B, 1, T, T).
        """
        return self.decode(x, encoder_output, src_mask, tgt_mask)


class DecoderBlock(DecoderLayer):
    """Tutorial document 003's decoder layer, with pre-norm and GELU: self-attention, cross-attention, feed-forward."""

    style, drops_attention = MODERN, True


class DocumentStack(nn.Module):
    """Base class of tutorial document 003's encoder and decoder: positional encoding, blocks and a final norm.

    The input is embeddings, not token ids. Subclasses set `block`, the class of the `num_layers` layers.
    """

    block: type[DocumentLayer]

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = 0.1, max_seq_len: int = 5000
    ):
        super().__init__()
        self.positional_encoding = PositionalEncoding(d_model, max_seq_len, dropout)
        self.layers = nn.ModuleList([self.block(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)])
        self.norm = LayerNormalization(d_model)


class Encoder(DocumentStack):
    """Tutorial document 003's encoder: positional encoding, encoder blocks and a final norm, applied to embeddings."""

    block = EncoderBlock

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the encoder to embeddings x (B, S, C) and return the same shape.

        `mask` is 1 or True where attention is allowed and broadcasts to (B, 1, S, S).
        """
        x = self.positional_encoding(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(DocumentStack):
    """Tutorial document 003's decoder: positional encoding, decoder blocks with cross-attention and a final norm."""

    block = DecoderBlock

    def forward(
        self, x: Tensor, encoder_output: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """Apply the decoder to embeddings x (B, T, C) and return the same shape.

        `encoder_output` is the encoder's output (B, S, C). The masks are 1 or True where attention is allowed:
        `src_mask` broadcasts to (B, 1, T, S), `tgt_mask` to (B, 1, T, T).
        """
        x = self.positional_encoding(x)
        for layer in self.layers:
            x = layer(x, encoder_output, src_mask, tgt_mask)
        return self.norm(x)
