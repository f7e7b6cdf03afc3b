"""The config fields that affect a model's arithmetic.

These are the fields of the torch models' config with the same defaults; a test compares the two. Fields without effect
in evaluation are listed in `EXEMPT`, each with a reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

EXEMPT = {
    "dropout": "random, and off in evaluation",
    "attention_dropout": "random, and off in evaluation",
    "activation_dropout": "random, and off in evaluation",
    "embedding_dropout": "random, and off in evaluation",
    "layer_drop": "random, and off in evaluation",
    "init": "says where the numbers start; the oracle is given them",
    "init_std": "says where the numbers start; the oracle is given them",
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A model's architecture."""

    vocab_size: int
    source_vocab_size: int | None = None
    n_encoder_layers: int = 0
    n_decoder_layers: int = 0
    d_model: int = 512
    d_ff: int = 2048
    max_len: int | None = 5000
    n_heads: int = 8
    n_kv_heads: int | None = None
    head_dim: int | None = None
    attention_scale: float | None = None
    qkv_bias: bool = True
    out_bias: bool = True
    qk_norm: bool = False
    sliding_window: int | None = None
    activation: str = "relu"
    gated: bool = False
    ffn_bias: bool = True
    norm: str = "layer"
    norm_placement: str = "post"
    norm_eps: float = 1e-5
    final_norm: bool | None = None
    positions: str = "sinusoidal"
    position_offset: int = 0
    sinusoid_halves: bool = False
    rope_theta: float = 10000.0
    relative_buckets: int = 32
    relative_max_distance: int = 128
    scale_embeddings: bool = False
    token_types: int = 0
    embedding_norm: bool = False
    embedding_width: int | None = None
    tie: str = "none"
    share_layers: bool = False
    head: str = "none"
    n_labels: int | None = None
    head_transform: bool = False
    pooling: str | None = None
    output_bias: bool = True
    scale_output: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """Return a config from these values, ignoring exempt fields. An unknown name is an error."""
        known = {field.name for field in fields(cls)}
        unknown = [name for name in values if name not in known and name not in EXEMPT]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is neither handled by the reference nor exempt from it")
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def kv_heads(self) -> int:
        """Return the number of key-value heads, which defaults to the number of heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def head_size(self) -> int:
        """Return the width of one head."""
        return self.head_dim or self.d_model // self.n_heads

    @property
    def scale(self) -> float:
        """Return the factor of the attention scores, by default 1/√d_k."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def table_width(self) -> int:
        """Return the width of the embedding tables."""
        return self.embedding_width or self.d_model

    @property
    def pool_by(self) -> str:
        """Return the pooling method: by default the first token for encoders, the last token for decoders."""
        return self.pooling or ("last" if self.n_decoder_layers else "first")

    @property
    def has_final_norm(self) -> bool:
        """Return whether the stack ends with a norm, by default with pre-norm only."""
        return self.norm_placement == "pre" if self.final_norm is None else self.final_norm
