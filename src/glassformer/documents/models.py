"""The documents' complete models, each one of our three models with the documents' keywords and calls.

Two habits of the documents differ from our own models': positions are simply 0, 1, 2, ..., whatever the mask says,
and in `Transformer` the masks given are the whole truth, so that without a target mask the decoder sees ahead.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.documents.styles import MODERN, PAPER, PRE_NORM, document_mask, token_mask
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig
from glassformer.models.base import check_memory
from glassformer.models.inputs import prepare
from glassformer.nn import Embeddings, KVCache, Mask


class Transformer(EncoderDecoderModel):
    """The encoder-decoder of documents 000 and 001; any other config field may be given as a keyword too.

    Document 003's is `Transformer(..., norm="mean_std", norm_eps=1e-6, norm_placement="pre", activation="gelu",
    scale_embeddings=True)`.
    """

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        d_ff: int = 2048,
        dropout: float = 0.1,
        max_seq_len: int = 5000,
        **options: Any,
    ):
        values = {
            "vocab_size": tgt_vocab_size,
            "source_vocab_size": src_vocab_size,
            "d_model": d_model,
            "n_heads": num_heads,
            "n_encoder_layers": num_layers,
            "n_decoder_layers": num_layers,
            "d_ff": d_ff,
            "max_len": max_seq_len,
            "head": "language_model",
            "dropout": dropout,
            "activation_dropout": dropout,
            "embedding_dropout": dropout,
            **PAPER,
        }
        super().__init__(ModelConfig.from_dict(values | options))

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """src (B, S), tgt (B, T), masks that broadcast to (B, 1, query, key) -> logits (B, T, V)."""
        return self.project(self.decode(tgt, self.encode(src, src_mask), src_mask, tgt_mask))

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """(B, S) -> (B, S, C)."""
        return _encode(self, "src", src, document_mask("src_mask", src_mask))

    def decode(
        self,
        tgt: Tensor,
        encoder_output: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Tensor:
        """The hidden states under the projection: (B, T), (B, S, C) -> (B, T, C)."""
        masks = document_mask("tgt_mask", tgt_mask), document_mask("src_mask", src_mask)
        return _decode(self, "tgt", tgt, encoder_output, *masks, cache=cache)

    def project(self, hidden: Tensor) -> Tensor:
        """Logits of these hidden states: (B, T, C) -> (B, T, V)."""
        return self.answer(hidden)

    @property
    def encoder_embedding(self) -> nn.Embedding:
        """000's name for the source table."""
        return self.source_embeddings.tokens

    @property
    def decoder_embedding(self) -> nn.Embedding:
        """000's name for the target table."""
        return self.target_embeddings.tokens


def build_transformer(
    src_vocab_size: int,
    tgt_vocab_size: int,
    src_seq_len: int,
    tgt_seq_len: int,
    d_model: int = 512,
    N: int = 6,  # noqa: N803  # the document's name
    h: int = 8,
    dropout: float = 0.1,
    d_ff: int = 2048,
) -> Transformer:
    """Document 002's factory: scaled embeddings, pre-norm with the mean/std norm, Xavier-uniform matrices."""
    return Transformer(
        src_vocab_size,
        tgt_vocab_size,
        d_model=d_model,
        num_heads=h,
        num_layers=N,
        d_ff=d_ff,
        dropout=dropout,
        max_seq_len=max(src_seq_len, tgt_seq_len),
        scale_embeddings=True,
        attention_dropout=dropout,
        **PRE_NORM,
    )


def _modern(d_model: int, num_heads: int, d_ff: int, dropout: float, max_seq_len: int) -> dict[str, Any]:
    return {
        "d_model": d_model,
        "n_heads": num_heads,
        "d_ff": d_ff,
        "max_len": max_seq_len,
        "scale_embeddings": True,
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        "embedding_dropout": dropout,
        **MODERN,
    }


class BERTModel(EncoderModel):
    """003's encoder-only model: hidden states, without a head."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_heads: int = 12,
        d_ff: int = 3072,
        num_layers: int = 12,
        dropout: float = 0.1,
        max_seq_len: int = 512,
    ):
        common = _modern(d_model, num_heads, d_ff, dropout, max_seq_len)
        super().__init__(ModelConfig(vocab_size=vocab_size, n_encoder_layers=num_layers, **common))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(B, T), (B, T) -> (B, T, C)."""
        padding = token_mask("attention_mask", attention_mask, input_ids)
        x, positions = _embed("input_ids", input_ids, self.embeddings, self.config)
        return self.encoder(x, positions=positions, mask=Mask(padding=padding))


class GPTModel(DecoderModel):
    """003's decoder-only model: logits of each next token."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_heads: int = 12,
        d_ff: int = 3072,
        num_layers: int = 12,
        dropout: float = 0.1,
        max_seq_len: int = 1024,
    ):
        common = _modern(d_model, num_heads, d_ff, dropout, max_seq_len)
        super().__init__(
            ModelConfig(vocab_size=vocab_size, n_decoder_layers=num_layers, head="language_model", **common)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(B, T), (B, T) -> (B, T, V)."""
        padding = token_mask("attention_mask", attention_mask, input_ids)
        x, positions = _embed("input_ids", input_ids, self.embeddings, self.config)
        return self.answer(self.decoder(x, positions=positions, mask=Mask(causal=True, padding=padding)))

    def generate_causal_mask(self, seq_len: int) -> Tensor:
        """The mask this model applies by itself, True = may attend: (1, 1, seq_len, seq_len)."""
        return torch.ones(seq_len, seq_len, dtype=torch.bool).tril()[None, None]


class T5Model(EncoderDecoderModel):
    """003's encoder-decoder with one table for source, target and output."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dropout: float = 0.1,
        max_seq_len: int = 512,
    ):
        config = ModelConfig(
            vocab_size=vocab_size,
            n_encoder_layers=num_encoder_layers,
            n_decoder_layers=num_decoder_layers,
            tie="all",
            head="language_model",
            output_bias=False,
            **_modern(d_model, num_heads, d_ff, dropout, max_seq_len),
        )
        super().__init__(config)

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        encoder_attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """(B, S), (B, T) and masks of their shapes -> logits (B, T, V)."""
        source = Mask(padding=token_mask("encoder_attention_mask", encoder_attention_mask, input_ids))
        target_padding = token_mask("decoder_attention_mask", decoder_attention_mask, decoder_input_ids)
        memory = _encode(self, "input_ids", input_ids, source)
        target = Mask(causal=True, padding=target_padding)
        return self.answer(_decode(self, "decoder_input_ids", decoder_input_ids, memory, target, source))


def _embed(
    name: str, tokens: Tensor, embeddings: Embeddings, config: ModelConfig, cache: KVCache | None = None
) -> tuple[Tensor, Tensor]:
    positions = prepare(name, tokens, embeddings, config, causal=False, cache=cache).positions
    return embeddings(tokens, positions), positions


def _encode(model: EncoderDecoderModel, name: str, source: Tensor, mask: Mask) -> Tensor:
    x, positions = _embed(name, source, model.source_embeddings, model.config)
    return model.encoder(x, positions=positions, mask=replace(mask, window=model.config.sliding_window))


def _decode(
    model: EncoderDecoderModel,
    name: str,
    target: Tensor,
    memory: Tensor,
    target_mask: Mask,
    source_mask: Mask,
    cache: KVCache | None = None,
) -> Tensor:
    check_memory(memory, target.shape[0], model.config.d_model)
    x, positions = _embed(name, target, model.target_embeddings, model.config, cache)
    return model.decoder(
        x,
        positions=positions,
        mask=replace(target_mask, window=model.config.sliding_window),
        memory=memory,
        memory_mask=source_mask,
        cache=cache,
    )
