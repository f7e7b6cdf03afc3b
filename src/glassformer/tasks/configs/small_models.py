"""The default architectures: small models that learn on two cores."""

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
"""Width and initialization of models with one stack."""


def small_encoder_decoder(**changes: Any) -> ModelConfig:
    """A small model that learns on two cores: the paper's, right-sized for tens of thousands of pairs."""
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
    """A small encoder that learns on two cores."""
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
    """A small encoder that learns on two cores. Words weigh as much as their places, from the first update on."""
    return small_encoder(head="language_model", tie="output", scale_embeddings=True, dropout=0.1, embedding_dropout=0.1)


def small_tagger(**changes: Any) -> ModelConfig:
    """A small encoder that learns on two cores. Few tokens, so that it must learn how names are spelled."""
    return small_encoder(**{"vocab_size": 4000, "positions": "rotary", **changes})


def small_decoder(**changes: Any) -> ModelConfig:
    """A small decoder that learns on two cores: Llama's parts, right-sized."""
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
