"""The complete models of the tutorial documents (`docs/documents.md`): our models with the documents' arguments.

The documents differ from our models in two ways: positions are always 0, 1, 2, ..., regardless of the mask, and
`Transformer` applies only the masks it is given, so that without a target mask the decoder attends to future tokens.
Generation and scoring use the methods of our base classes instead, because a result must not depend on the padding of
its batch.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.documents.styles import MODERN, PAPER, PRE_NORM, document_mask, flat_mask
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig
from glassformer.models.inputs import Inputs, prepare
from glassformer.models.transformer import check_memory
from glassformer.nn import KVCache, Mask


class Transformer(EncoderDecoderModel):
    """The encoder-decoder of tutorial documents 000 and 001. `options` may set any other field of `ModelConfig`.

    The encoder-decoder of document 003 is `Transformer(..., norm="mean_std", norm_eps=1e-6, norm_placement="pre",
    activation="gelu", scale_embeddings=True)`.
    """

    plain_positions = True

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        *,  # 000 and 003 order the rest differently
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
        """Return the logits (B, T, V) for source ids (B, S) and target ids (B, T).

        The masks are 1 or True where attention is allowed and broadcast to (B, 1, query, key).
        """
        source, target = self._document_source(src, src_mask), self._document_target(tgt, tgt_mask)
        memory_mask = self._memory_mask(src_mask, tgt, src.shape[1])
        if len(src) != len(tgt):
            raise ValueError(f"tgt has {len(tgt)} rows: expected {len(src)}, as src")
        return self.project(self._decode(tgt, target, self._encode(src, source), memory_mask))

    def encode(  # type: ignore[override]  # the document's arguments
        self, src: Tensor, src_mask: Tensor | None = None
    ) -> Tensor:
        """Return the encoder's output (B, S, C) for source ids (B, S).

        `src_mask` is 1 or True where attention is allowed and broadcasts to (B, 1, S, S).
        """
        return self._encode(src, self._document_source(src, src_mask))

    def decode(
        self,
        tgt: Tensor,
        encoder_output: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Return the decoder's last hidden states (B, T, C) for target ids (B, T), before the output projection.

        `encoder_output` is (B, S, C). The masks are 1 or True where attention is allowed; they broadcast to (B, 1, T,
        S) for `src_mask` and to (B, 1, T, keys) for `tgt_mask`. With a cache, `tgt` holds only the new tokens.
        """
        check_memory(encoder_output, tgt, self.config.d_model, cache)
        memory_mask = self._memory_mask(src_mask, tgt, encoder_output.shape[1])
        return self._decode(tgt, self._document_target(tgt, tgt_mask, cache), encoder_output, memory_mask, cache)

    def _document_source(self, source: Tensor, mask: Tensor | None) -> Inputs:
        inputs = prepare("src", source, self.source_embeddings, self.config, causal=False, plain_positions=True)
        shape = len(source), 1, source.shape[1], source.shape[1]
        return inputs._replace(mask=replace(inputs.mask, allowed=document_mask("src_mask", mask, shape)))

    def _document_target(self, target: Tensor, mask: Tensor | None, cache: KVCache | None = None) -> Inputs:
        embeddings = self.target_embeddings
        inputs = prepare("tgt", target, embeddings, self.config, causal=False, cache=cache, plain_positions=True)
        shape = len(target), 1, target.shape[1], inputs.key_positions.shape[1]
        return inputs._replace(mask=replace(inputs.mask, allowed=document_mask("tgt_mask", mask, shape)))

    def _memory_mask(self, mask: Tensor | None, target: Tensor, n_source: int) -> Mask:
        return Mask(allowed=document_mask("src_mask", mask, (len(target), 1, target.shape[1], n_source)))

    def project(self, hidden: Tensor) -> Tensor:
        """Return the logits of the decoder's hidden states: (B, T, C) -> (B, T, V)."""
        return self.apply_head(hidden)

    @property
    def encoder_embedding(self) -> nn.Embedding:
        """The source embedding table, under its name in tutorial document 000."""
        return self.source_embeddings.tokens

    @property
    def decoder_embedding(self) -> nn.Embedding:
        """The target embedding table, under its name in tutorial document 000."""
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
    """Return the model that tutorial document 002's factory builds, with random weights.

    It is an encoder-decoder with scaled embeddings, pre-norm with the mean/std norm, ReLU and Xavier-uniform matrices.
    `N` is the number of layers of each stack and `h` the number of heads.
    """
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
    """Tutorial document 003's encoder-only model. It returns hidden states, because it has no head."""

    plain_positions = True

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

    def forward(  # type: ignore[override]  # the document's arguments
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states (B, T, C) of token ids (B, T).

        `attention_mask` is (B, T) or (B, 1, 1, T), 1 or True for real tokens.
        """
        return super().forward(input_ids, flat_mask(attention_mask))


class GPTModel(DecoderModel):
    """Tutorial document 003's decoder-only model. It returns the logits of the next token at each position."""

    plain_positions = True

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

    def forward(  # type: ignore[override]  # the document's arguments
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, cache: KVCache | None = None
    ) -> Tensor:
        """Return the logits (B, T, V) of token ids (B, T).

        `attention_mask` is (B, T) or (B, 1, 1, T), 1 or True for real tokens. With a cache, both hold only the new
        tokens.
        """
        return super().forward(input_ids, flat_mask(attention_mask), cache=cache)

    def generate_causal_mask(self, seq_len: int) -> Tensor:
        """Return the causal mask (1, 1, seq_len, seq_len), True = may attend. `forward` applies it in any case."""
        return torch.ones(seq_len, seq_len, dtype=torch.bool).tril()[None, None]


class T5Model(EncoderDecoderModel):
    """Tutorial document 003's encoder-decoder. Source, target and output projection share one embedding matrix."""

    plain_positions = True

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
        """Return the logits (B, T, V) for source ids (B, S) and target ids (B, T).

        The masks are 1 or True for real tokens. The encoder's is (B, S) or (B, 1, 1, S), the decoder's (B, T) or
        (B, 1, 1, T).
        """
        masks = flat_mask(encoder_attention_mask), flat_mask(decoder_attention_mask)
        return super().forward(input_ids, decoder_input_ids, *masks)
