"""The default architectures: small models that can be trained on two CPU cores."""

from typing import Any

from glassformer.models import ModelConfig

NARROW: dict[str, Any] = {
    "d_model": 128,
    "n_heads": 4,
    "d_ff": 256,
    "norm_placement": "pre",
    "init": "normal",
    "init_std": 0.088,
}
"""Config fields that `small_encoder` and `small_decoder` share: width, norm placement and initialization."""


def small_encoder_decoder(**changes: Any) -> ModelConfig:
    """Return the config of a small encoder-decoder for tens of thousands of pairs; `changes` are fields to replace.

    It is the Transformer of Vaswani et al. (2017), but with the norm before each sublayer.
    """
    values: dict[str, Any] = {
        "vocab_size": 4000,
        "n_encoder_layers": 3,
        "n_decoder_layers": 3,
        "d_model": 192,
        "n_heads": 4,
        "d_ff": 384,
        "max_len": 256,
        "norm_placement": "pre",
        "scale_embeddings": True,
        "tie": "all",
        "head": "language_model",
        "output_bias": False,
        "dropout": 0.2,
        "embedding_dropout": 0.2,
    }
    return ModelConfig(**{**values, **changes})


def small_encoder(**changes: Any) -> ModelConfig:
    """Return the config of a small encoder, two layers of width 128; `changes` are fields to replace."""
    values: dict[str, Any] = {
        **NARROW,
        "vocab_size": 8000,
        "n_encoder_layers": 2,
        "max_len": 256,
        "dropout": 0.3,
        "embedding_dropout": 0.3,
    }
    return ModelConfig(**{**values, **changes})


def small_language_encoder() -> ModelConfig:
    """Return the config of a small encoder for masked language modeling.

    Embeddings are scaled, so that they are about as large as the position encodings.
    """
    return small_encoder(head="language_model", tie="output", scale_embeddings=True, dropout=0.1, embedding_dropout=0.1)


def small_tagger(**changes: Any) -> ModelConfig:
    """Return the config of a small encoder for tagging; `changes` are fields to replace.

    Its vocabulary is small, so that names are split into short pieces and it learns how they are spelled.
    """
    return small_encoder(**{"vocab_size": 4000, "positions": "rotary", **changes})


def small_decoder(**changes: Any) -> ModelConfig:
    """Return the config of a small Llama-like decoder; `changes` are fields to replace.

    Like Llama it has RMS norm, rotary positions and gated SiLU layers without biases; query-key norm is added.
    """
    values: dict[str, Any] = {
        **NARROW,
        "vocab_size": 2048,
        "n_decoder_layers": 4,
        "gated": True,
        "activation": "silu",
        "qk_norm": True,
        "norm": "rms",
        "positions": "rotary",
        "qkv_bias": False,
        "out_bias": False,
        "ffn_bias": False,
        "tie": "output",
        "scale_embeddings": True,
        "head": "language_model",
        "output_bias": False,
        "dropout": 0.0,
    }
    return ModelConfig(**{**values, **changes})
