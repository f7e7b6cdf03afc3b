"""One frozen, validated description of a model. The families differ in these values, not in code."""

import difflib
import math
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal

from glassformer.base.checks import check_divides, check_positive, check_probability, shown

Kind = Literal["encoder", "decoder", "encoder_decoder"]

# What other libraries call it, for the error that meets their names.
ELSEWHERE = {
    "n_layers": "n_encoder_layers' or 'n_decoder_layers",
    "num_layers": "n_encoder_layers' or 'n_decoder_layers",
    "num_hidden_layers": "n_encoder_layers' or 'n_decoder_layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_heads": "n_heads",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "max_seq_len": "max_len",
    "max_position_embeddings": "max_len",
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything about the shape of a model; nothing about device, dtype, training or text.

    The number of encoder and decoder layers says what it is: an encoder, a decoder, or both. None always means "the
    usual value", which the property of nearly the same name gives (`kv_heads` for `n_kv_heads`).
    """

    # Size
    vocab_size: int
    """Tokens the model writes; an encoder alone reads them."""
    source_vocab_size: int | None = None
    """Tokens the encoder of an encoder-decoder reads, where that vocabulary is another one."""
    n_encoder_layers: int = 0
    n_decoder_layers: int = 0
    d_model: int = 512
    d_ff: int = 2048
    max_len: int | None = 5000
    """The longest sequence, or None for no limit of its own."""

    # Attention
    n_heads: int = 8
    n_kv_heads: int | None = None
    """Fewer than n_heads: grouped-query attention; 1: multi-query. None is n_heads."""
    head_dim: int | None = None
    """None is d_model / n_heads."""
    attention_scale: float | None = None
    """What scores are multiplied by. None is 1/√head_dim; T5 uses 1."""
    qkv_bias: bool = True
    out_bias: bool = True
    qk_norm: bool = False
    """Normalise queries and keys over the head, before they are turned."""
    sliding_window: int | None = None
    """Self-attention reaches less than this many tokens away."""

    # Feed-forward
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    gated: bool = False
    ffn_bias: bool = True

    # Norms
    norm: Literal["layer", "rms", "mean_std"] = "layer"
    norm_placement: Literal["pre", "post"] = "post"
    norm_eps: float = 1e-5
    final_norm: bool | None = None
    """A norm after the last layer. None is: with pre-norm only."""

    # Positions
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"] = "sinusoidal"
    position_offset: int = 0
    """Learned positions are counted from here: the rows before it are never read (2 in RoBERTa and BART)."""
    sinusoid_halves: bool = False
    """All sines before all cosines (Marian) instead of alternating."""
    rope_theta: float = 10000.0
    relative_buckets: int = 32
    relative_max_distance: int = 128

    # Embeddings
    scale_embeddings: bool = False
    """Multiply token vectors by √width."""
    token_types: int = 0
    embedding_norm: bool = False
    embedding_width: int | None = None
    """Width of the embedding tables, which a linear layer projects to d_model (ALBERT). None: d_model, and no such
    layer."""
    tie: Literal["none", "output", "embeddings", "all"] = "none"
    """What shares one table: the (target) embedding and the output, the two embeddings, or all three."""

    # Depth
    share_layers: bool = False
    """One layer, applied again and again."""

    # Head
    head: Literal["none", "language_model", "sequence_class", "token_class", "span", "embedding"] = "none"
    n_labels: int | None = None
    """Classes, for the two class heads."""
    head_transform: bool = False
    """A dense layer before the head's last one: activation and norm (BERT's masked-word head), or tanh (its pooler)."""
    pooling: Literal["first", "last", "mean"] | None = None
    """How a sequence becomes one vector, for sequence_class and embedding. None is the first token of an encoder, and
    the last of a decoder, which alone has seen all others."""
    output_bias: bool = True
    """The language-model head adds a learned number to each token's logit."""
    scale_output: bool = False
    """Divide by √d_model before the vocabulary projection (T5 1.0)."""

    # Regularisation
    dropout: float = 0.1
    """On each sublayer's output, before it is added."""
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    embedding_dropout: float = 0.0
    layer_drop: float = 0.0
    """The chance that a layer is skipped in training."""

    # Initialisation
    init: Literal["xavier", "normal", "gpt2", "t5"] = "xavier"
    init_std: float = 0.02
    """Of the normal and gpt2 schemes."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_sizes(self)
        _check_combinations(self)

    @property
    def kind(self) -> Kind:
        """Which of the three models this is."""
        if not self.n_decoder_layers:
            return "encoder"
        return "encoder_decoder" if self.n_encoder_layers else "decoder"

    @property
    def kv_heads(self) -> int:
        """Key-value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def source_vocab(self) -> int:
        """Tokens the encoder of an encoder-decoder reads."""
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size

    @property
    def table_width(self) -> int:
        """Width of the embedding tables."""
        return self.d_model if self.embedding_width is None else self.embedding_width

    @property
    def pool_by(self) -> Literal["first", "last", "mean"]:
        """How a sequence becomes one vector."""
        return self.pooling or ("last" if self.n_decoder_layers else "first")

    @property
    def ties_embeddings(self) -> bool:
        """Whether source and target tokens share one table."""
        return self.tie in ("embeddings", "all")

    @property
    def ties_output(self) -> bool:
        """Whether the vocabulary projection is the (target) embedding table."""
        return self.tie in ("output", "all")

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer."""
        return self.norm_placement == "pre" if self.final_norm is None else self.final_norm

    def with_head(self, head: str, **changes: Any) -> "ModelConfig":
        """The same body under another head: `preset("bert-base").with_head("sequence_class", n_labels=2)`.

        What only the old head could use is reset: a tied output, a transform, labels, pooling. Name what you want kept.
        """
        values: dict[str, Any] = {"head": head, "n_labels": None, "head_transform": False, "pooling": None}
        if head != "language_model":
            values["tie"] = {"output": "none", "all": "embeddings"}.get(self.tie, self.tie)
        return ModelConfig.from_dict({**self.to_dict(), **values, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON or TOML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The config of these values; an unknown key is an error that suggests the nearest known one."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                near = [ELSEWHERE[key]] if key in ELSEWHERE else difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
                raise ValueError(f"unknown config key {shown(key)}: {hint}")
        if "vocab_size" not in values:
            raise ValueError("config key 'vocab_size' is missing: expected the number of tokens")
        return cls(**values)


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(ModelConfig)


def _check_types(config: ModelConfig) -> None:
    for name, hint in _hints().items():
        value = getattr(config, name)
        kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
        if value is None and NoneType in kinds:
            continue
        kind = next(kind for kind in kinds if kind is not NoneType)
        if typing.get_origin(kind) is Literal:
            _check_choice(name, value, typing.get_args(kind))
            continue
        is_stray_bool = isinstance(value, bool) and kind is not bool
        if is_stray_bool or not isinstance(value, (int, float) if kind is float else kind):
            names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
            raise TypeError(f"{name}={shown(value)}: expected {names}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{name}={shown(value)}: expected one of {', '.join(map(repr, choices))}{hint}")


def _check_sizes(config: ModelConfig) -> None:
    for name in ("vocab_size", "d_model", "d_ff", "n_heads", "relative_buckets", "relative_max_distance"):
        check_positive(name, getattr(config, name))
    for name in (
        "source_vocab_size",
        "max_len",
        "n_kv_heads",
        "head_dim",
        "sliding_window",
        "embedding_width",
        "n_labels",
    ):
        if getattr(config, name) is not None:
            check_positive(name, getattr(config, name))
    for name in ("n_encoder_layers", "n_decoder_layers", "token_types", "position_offset"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name}={getattr(config, name)}: expected 0 or more")
    for name in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "layer_drop"):
        check_probability(name, getattr(config, name))
    for name in ("norm_eps", "rope_theta", "init_std"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name}={getattr(config, name)}: expected a finite number above 0")
    if config.head_size < 1:
        raise ValueError(f"n_heads={config.n_heads} with d_model={config.d_model}: expected no more heads than width")
    if not math.isfinite(config.scale):
        raise ValueError(f"attention_scale={config.attention_scale}: expected a finite number")


def _check_combinations(config: ModelConfig) -> None:
    if not config.n_encoder_layers and not config.n_decoder_layers:
        raise ValueError("n_encoder_layers=0 and n_decoder_layers=0: expected at least one layer")
    if config.head_dim is None:
        check_divides("n_heads", config.n_heads, "d_model", config.d_model)
    check_divides("n_kv_heads", config.kv_heads, "n_heads", config.n_heads)
    if config.positions == "rotary" and config.head_size % 2:
        raise ValueError(f"positions='rotary' with heads {config.head_size} wide: expected an even head size")
    if config.positions in ("sinusoidal", "learned") and config.max_len is None:
        raise ValueError(
            f"max_len=None with positions={config.positions!r}: expected a whole number, the table's length"
        )
    if config.position_offset and config.positions != "learned":
        raise ValueError(
            f"position_offset={config.position_offset} with positions={config.positions!r}: expected 0, or 'learned'"
        )
    if config.positions == "relative":
        least = 4 if config.n_encoder_layers else 2
        if config.relative_buckets < least or config.relative_max_distance <= config.relative_buckets // 2:
            raise ValueError(
                f"relative_buckets={config.relative_buckets}, relative_max_distance={config.relative_max_distance}: "
                f"expected at least {least} buckets and a distance above half their number"
            )
    if config.token_types and config.kind == "encoder_decoder":
        raise ValueError(f"token_types={config.token_types} for kind 'encoder_decoder', which reads none: expected 0")
    if config.source_vocab_size is not None and config.kind != "encoder_decoder":
        raise ValueError(f"source_vocab_size={config.source_vocab_size} for kind {config.kind!r}: expected None")
    if config.ties_embeddings and config.kind != "encoder_decoder":
        raise ValueError(
            f"tie={config.tie!r} for kind {config.kind!r}, which has one table: expected 'output' or 'none'"
        )
    if config.ties_embeddings and config.source_vocab != config.vocab_size:
        raise ValueError(
            f"tie={config.tie!r} with source_vocab_size={config.source_vocab} and vocab_size={config.vocab_size}: "
            "expected one vocabulary"
        )
    _check_head(config)


def _check_head(config: ModelConfig) -> None:
    if config.head in ("sequence_class", "token_class") and config.n_labels is None:
        raise ValueError(f"n_labels=None with head={config.head!r}: expected the number of classes")
    if config.ties_output and config.head != "language_model":
        raise ValueError(
            f"tie={config.tie!r} with head={config.head!r}, which writes no words: expected tie='none'"
            + (" or 'embeddings'" if config.kind == "encoder_decoder" else "")
        )
    if config.n_labels is not None and config.head not in ("sequence_class", "token_class"):
        raise ValueError(f"n_labels={config.n_labels} with head={config.head!r}, which has no classes: expected None")
    if config.head_transform and config.head in ("none", "token_class", "span"):
        raise ValueError(f"head_transform=True with head={config.head!r}, which has none: expected False")
    if config.pooling is not None and config.head not in ("sequence_class", "embedding"):
        raise ValueError(f"pooling={config.pooling!r} with head={config.head!r}, which pools nothing: expected None")
    if config.table_width != config.d_model and config.ties_output and not config.head_transform:
        raise ValueError(
            f"embedding_width={config.embedding_width} tied to the output without head_transform: expected "
            "head_transform=True, whose dense layer leads back to the narrow width"
        )
