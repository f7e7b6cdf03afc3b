"""The model config of the NumPy models: the fields that affect a model's arithmetic in evaluation.

The fields are those of `models/config.py`, with the same defaults; a test compares the two. Fields of that config
without effect in evaluation are listed in `EXEMPT`, each with a reason.
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
    "expert_balance": "weight of a loss of the training",
    "init": "says where the numbers start; the oracle is given them",
    "init_std": "says where the numbers start; the oracle is given them",
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The architecture of a model. The fields have the meaning that `glassformer.ModelConfig` documents."""

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
    scale_by_depth: bool = False
    qkv_bias: bool = True
    key_bias: bool = True
    out_bias: bool = True
    qk_norm: bool = False
    qk_norm_over: str = "head"
    clip_qkv: float | None = None
    attention_softcap: float | None = None
    sliding_window: int | None = None
    global_layers: tuple[int, ...] = ()
    activation: str = "relu"
    gated: bool = False
    ffn_bias: bool = True
    n_experts: int = 0
    experts_per_token: int = 2
    expert_d_ff: int | None = None
    shared_expert_d_ff: int | None = None
    normalize_expert_weights: bool = True
    dense_layers: tuple[int, ...] = ()
    norm: str = "layer"
    norm_placement: str = "post"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_weight: bool = True
    first_norm: bool = True
    final_norm: bool | None = None
    positions: str = "sinusoidal"
    position_offset: int = 0
    sinusoid_halves: bool = False
    sinusoid_full_range: bool = False
    rope_theta: float = 10000.0
    local_rope_theta: float | None = None
    unrotated_layers: tuple[int, ...] = ()
    rope_width: int | None = None
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_original_len: int | None = None
    rope_low_rotations: float = 1.0
    rope_high_rotations: float = 4.0
    rope_attention_factor: float | None = None
    rope_short_divisors: tuple[float, ...] | None = None
    rope_long_divisors: tuple[float, ...] | None = None
    relative_buckets: int = 32
    relative_max_distance: int = 128
    relative_log: bool = True
    relative_norm: bool = True
    share_relative_proj: bool = True
    relative_bias: bool = False
    share_relative_bias: bool = True
    scale_embeddings: bool = False
    embedding_multiplier: float | None = None
    token_types: int = 0
    embedding_norm: bool = False
    embedding_width: int | None = None
    tie: str = "none"
    residual_multiplier: float = 1.0
    parallel_ffn: str = "none"
    share_layers: bool = False
    conv_kernel: int | None = None
    conv_activation: str = "tanh"
    head: str = "none"
    n_labels: int | None = None
    head_transform: bool = False
    head_activation: str | None = None
    head_norm: bool | None = None
    head_bias: bool = True
    head_width: int | None = None
    unit_length: bool = True
    pooling: str | None = None
    output_bias: bool = True
    scale_output: bool = False
    output_multiplier: float = 1.0
    output_softcap: float | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """Return a config with these field values; fields in `EXEMPT` are ignored.

        An unknown name raises ValueError.
        """
        known = {field.name for field in fields(cls)}
        unknown = [name for name in values if name not in known and name not in EXEMPT]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is neither handled by the reference nor exempt from it")
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads: `n_kv_heads`, or `n_heads` if it is None."""
        return self.n_kv_heads or self.n_heads

    @property
    def head_size(self) -> int:
        """Size of one attention head: `head_dim`, or d_model / n_heads if it is None."""
        return self.head_dim or self.d_model // self.n_heads

    @property
    def rope_size(self) -> int:
        """Number of features of a head that are rotated: `rope_width`, or the size of the head if it is None."""
        return self.rope_width or self.head_size

    @property
    def has_relative_bias(self) -> bool:
        """Whether T5's relative biases are added to the attention scores."""
        return self.relative_bias or self.positions == "relative"

    @property
    def scale(self) -> float:
        """Factor on attention scores: `attention_scale`, or if it is None, 1/√head_size.

        Disentangled scores are the sum of three products, so the default for them is 1/√(3 head_size).
        """
        if self.attention_scale is not None:
            return self.attention_scale
        return (self.head_size * (3 if self.positions == "disentangled" else 1)) ** -0.5

    @property
    def table_width(self) -> int:
        """Width of the embedding tables: `embedding_width`, or `d_model` if it is None."""
        return self.embedding_width or self.d_model

    @property
    def pool_by(self) -> str:
        """How a head pools a sequence: `pooling`, or if it is None, "last" for models with a decoder, else "first"."""
        return self.pooling or ("last" if self.n_decoder_layers else "first")

    @property
    def has_head_norm(self) -> bool:
        """Whether a norm follows the head's dense layer: `head_norm`, or if it is None, only for language models."""
        is_default = self.head == "language_model"
        return self.head_transform and (is_default if self.head_norm is None else self.head_norm)

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer of a stack: `final_norm`, or if it is None, unless with post-norm."""
        return self.norm_placement != "post" if self.final_norm is None else self.final_norm
