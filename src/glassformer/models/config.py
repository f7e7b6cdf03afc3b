"""The config of a model: one frozen, validated dataclass for all families.

BERT, GPT-2, Llama, T5 and all other families differ only in the values of these fields; see `presets.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from glassformer.base.checks import check_divides, shown
from glassformer.base.fields import Checked, Count, Positive, Probability, Whole
from glassformer.base.names import suggestion
from glassformer.nn.activations import ActivationName

Kind = Literal["encoder", "decoder", "encoder_decoder"]

OTHER_NAMES = {
    "n_layers": "n_encoder_layers or n_decoder_layers",
    "num_layers": "n_encoder_layers or n_decoder_layers",
    "num_hidden_layers": "n_encoder_layers or n_decoder_layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_heads": "n_heads",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "max_seq_len": "max_len",
    "max_position_embeddings": "max_len",
}
"""Names that other libraries use for our fields. The error about an unknown field suggests our name for it."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """The architecture of a model, without device, dtype, training or tokenizer.

    `n_encoder_layers` and `n_decoder_layers` decide the kind of model: an encoder, a decoder, or an encoder-decoder. A
    field that is None has a default that depends on other fields; a property returns the resolved value, such as
    `kv_heads` for `n_kv_heads`. The comments between the fields are the headings of `--help-all`.

    Raises TypeError or ValueError if a field is unknown, a value is invalid, or two values contradict each other.

    >>> import glassformer as gf
    >>> config = gf.ModelConfig(vocab_size=1000, n_decoder_layers=2, d_model=64, n_heads=4, head="language_model")
    >>> config.kind
    'decoder'
    """

    ALIASES = OTHER_NAMES

    # Size
    vocab_size: Count
    """Number of tokens in the (target) vocabulary; in training, the most that the tokenizer may learn."""
    source_vocab_size: Count | None = None
    """Size of the vocabulary of an encoder-decoder's source; None shares the vocabulary of the target."""
    n_encoder_layers: Whole = 0
    """Layers of the encoder."""
    n_decoder_layers: Whole = 0
    """Layers of the decoder."""
    d_model: Count = 512
    """Width of the vectors between the layers."""
    d_ff: Count = 2048
    """Inner width of the feed-forward layers."""
    max_len: Count | None = 5000
    """Length of the longest sequence in tokens; None sets no limit, where the positions allow it."""

    # Attention
    n_heads: Count = 8
    """Number of attention heads."""
    n_kv_heads: Count | None = None
    """Heads of keys and values: fewer than n_heads is grouped-query attention, 1 is multi-query; None is n_heads."""
    head_dim: Count | None = None
    """Width of one head; None is d_model / n_heads."""
    attention_scale: float | None = None
    """Factor on attention scores; None is 1/√head_dim, T5 uses 1."""
    scale_by_depth: bool = False
    """Divide the attention scores of the n-th layer by n, as some GPT-2 models do."""
    qkv_bias: bool = True
    """Add a bias to the query, key and value projections."""
    out_bias: bool = True
    """Add a bias to the output projection of attention."""
    qk_norm: bool = False
    """Normalize queries and keys over each head, before rotary positions are applied."""
    sliding_window: Count | None = None
    """Self-attention reaches tokens fewer than this many positions away; None reaches all."""

    # Feed-forward
    activation: ActivationName = "relu"
    """Activation function of the feed-forward layers."""
    gated: bool = False
    """Multiply the activation by a second projection, as SwiGLU does."""
    ffn_bias: bool = True
    """Add biases in the feed-forward layers."""

    # Norms
    norm: Literal["layer", "rms", "mean_std"] = "layer"
    """Kind of normalization."""
    norm_placement: Literal["pre", "post"] = "post"
    """Normalize before each sublayer (pre) or after the residual sum (post)."""
    norm_eps: Positive = 1e-5
    """Small number that keeps a norm from dividing by zero."""
    final_norm: bool | None = None
    """Normalize after the last layer; None does so with pre-norm only."""

    # Positions
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"] = "sinusoidal"
    """How the model knows the order of tokens."""
    position_offset: Whole = 0
    """Row of the learned positions that the first token reads (2 in RoBERTa and BART)."""
    sinusoid_halves: bool = False
    """Put all sines before all cosines, as Marian does, instead of alternating them."""
    rope_theta: Positive = 10000.0
    """Base of the rotary frequencies."""
    relative_buckets: Count = 32
    """Number of buckets for relative positions."""
    relative_max_distance: Count = 128
    """Distance from which all relative positions share one bucket."""

    # Embeddings
    scale_embeddings: bool = False
    """Multiply token vectors by √width."""
    token_types: Whole = 0
    """Number of token types, such as 2 in BERT for sentences A and B."""
    embedding_norm: bool = False
    """Normalize the embeddings before the first layer."""
    embedding_width: Count | None = None
    """Width of the embedding tables, which a linear layer projects to d_model (ALBERT); None is d_model."""
    tie: Literal["none", "output", "embeddings", "all"] = "none"
    """Matrices that share weights: the (target) embedding and the output, the two embeddings, or all three."""

    # Depth
    share_layers: bool = False
    """Use one layer's weights for all layers."""

    # Head
    head: Literal["none", "language_model", "sequence_class", "token_class", "span", "embedding"] = "none"
    """Head that computes the model's output from the last layer."""
    n_labels: Count | None = None
    """Number of classes, for the heads sequence_class and token_class."""
    head_transform: bool = False
    """Add a dense layer to the head, with activation and norm for a language model or tanh otherwise, as in BERT."""
    head_activation: ActivationName | None = None
    """Activation of the dense layer in a language-model head (RoBERTa has gelu there); None is the layers'."""
    pooling: Literal["first", "last", "mean"] | None = None
    """How a head pools a sequence into one vector; None is the first token of an encoder, the last of a decoder."""
    output_bias: bool = True
    """Add a learned bias to each token's logit in the language-model head."""
    scale_output: bool = False
    """Divide the hidden states by √d_model before the vocabulary projection, as T5 1.0 does."""

    # Dropout
    dropout: Probability = 0.1
    """Dropout on each sublayer's output, before the residual sum."""
    attention_dropout: Probability = 0.0
    """Dropout on the attention weights."""
    activation_dropout: Probability = 0.0
    """Dropout inside the feed-forward layers."""
    embedding_dropout: Probability = 0.0
    """Dropout on the embeddings."""
    layer_drop: Probability = 0.0
    """Probability that a layer is skipped in training."""

    # Initialization
    init: Literal["xavier", "normal", "gpt2", "t5"] = "xavier"
    """How the weights are initialized."""
    init_std: Positive = 0.02
    """Standard deviation of the normal and gpt2 initializations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sizes(self)
        _check_combinations(self)

    @property
    def kind(self) -> Kind:
        """Kind of model: "encoder", "decoder" or "encoder_decoder", depending on which stacks have layers."""
        if not self.n_decoder_layers:
            return "encoder"
        return "encoder_decoder" if self.n_encoder_layers else "decoder"

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads: `n_kv_heads`, or `n_heads` if it is None."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_size(self) -> int:
        """Size of one attention head: `head_dim`, or d_model / n_heads if it is None."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def scale(self) -> float:
        """Factor on attention scores: `attention_scale`, or 1/√head_size if it is None."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def source_vocab(self) -> int:
        """Vocabulary size of an encoder-decoder's encoder: `source_vocab_size`, or `vocab_size` if it is None."""
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size

    @property
    def table_width(self) -> int:
        """Width of the embedding tables: `embedding_width`, or `d_model` if it is None."""
        return self.d_model if self.embedding_width is None else self.embedding_width

    @property
    def pool_by(self) -> Literal["first", "last", "mean"]:
        """How a head pools a sequence: `pooling`, or if it is None, "last" for models with a decoder, else "first"."""
        return self.pooling or ("last" if self.n_decoder_layers else "first")

    @property
    def ties_embeddings(self) -> bool:
        """Whether an encoder-decoder's source and target share one embedding table."""
        return self.tie in ("embeddings", "all")

    @property
    def ties_output(self) -> bool:
        """Whether the output projection is the embedding table (of the target, in an encoder-decoder)."""
        return self.tie in ("output", "all")

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer of a stack: `final_norm`, or if it is None, only with pre-norm."""
        return self.norm_placement == "pre" if self.final_norm is None else self.final_norm

    def with_head(self, head: str, **changes: Any) -> "ModelConfig":
        """Return this config with another head: `preset("bert-base").with_head("sequence_class", n_labels=2)`.

        Fields that belong to the old head (`n_labels`, `head_transform`, `head_activation`, `pooling`, a tied output)
        are reset, unless `changes` sets them.
        """
        reset = dict.fromkeys(("n_labels", "head_activation", "pooling"))
        values: dict[str, Any] = {"head": head, "head_transform": False, **reset}
        if head != "language_model":
            values["tie"] = {"output": "none", "all": "embeddings"}.get(self.tie, self.tie)
        return ModelConfig.from_dict({**self.to_dict(), **values, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, for JSON or TOML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Return a config with these field values.

        An unknown name raises a ValueError that suggests the nearest field.
        """
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise ValueError(f"unknown config key {shown(key)}: {suggestion(key, known, aliases=OTHER_NAMES)}")
        if "vocab_size" not in values:
            raise ValueError("config key 'vocab_size' is missing: expected the number of tokens")
        return cls(**values)


def _check_sizes(config: ModelConfig) -> None:
    if config.head_size < 1:
        raise ValueError(f"n_heads={config.n_heads} with d_model={config.d_model}: expected n_heads of at most d_model")
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
        raise ValueError(f"max_len=None with positions={config.positions!r}: expected the length of the position table")
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
        raise ValueError(
            f"token_types={config.token_types} for kind 'encoder_decoder', which does not support them: expected 0"
        )
    if config.source_vocab_size is not None and config.kind != "encoder_decoder":
        raise ValueError(f"source_vocab_size={config.source_vocab_size} for kind {config.kind!r}: expected None")
    if config.ties_embeddings and config.kind != "encoder_decoder":
        raise ValueError(
            f"tie={config.tie!r} for kind {config.kind!r}, which has one embedding table: expected 'output' or 'none'"
        )
    if config.ties_embeddings and config.source_vocab != config.vocab_size:
        raise ValueError(
            f"tie={config.tie!r} with source_vocab_size={config.source_vocab} and vocab_size={config.vocab_size}: "
            "expected equal sizes"
        )
    if config.scale_by_depth and config.share_layers:
        raise ValueError("scale_by_depth=True with share_layers=True, whose layers are one: expected one of them")
    _check_head(config)


def _check_head(config: ModelConfig) -> None:
    if config.head in ("sequence_class", "token_class") and config.n_labels is None:
        raise ValueError(f"n_labels=None with head={config.head!r}: expected the number of classes")
    if config.ties_output and config.head != "language_model":
        raise ValueError(
            f"tie={config.tie!r} with head={config.head!r}, which has no output projection: expected tie='none'"
            + (" or 'embeddings'" if config.kind == "encoder_decoder" else "")
        )
    if config.n_labels is not None and config.head not in ("sequence_class", "token_class"):
        raise ValueError(f"n_labels={config.n_labels} with head={config.head!r}, which has no classes: expected None")
    if config.head_transform and config.head in ("none", "token_class", "span"):
        raise ValueError(f"head_transform=True with head={config.head!r}, which does not support it: expected False")
    if config.head_activation is not None and not (config.head_transform and config.head == "language_model"):
        raise ValueError(
            f"head_activation={config.head_activation!r} with head={config.head!r} and head_transform="
            f"{config.head_transform}: expected None, or a language-model head with head_transform=True"
        )
    if config.pooling is not None and config.head not in ("sequence_class", "embedding"):
        raise ValueError(f"pooling={config.pooling!r} with head={config.head!r}, which does not pool: expected None")
    if config.table_width != config.d_model and config.ties_output and not config.head_transform:
        raise ValueError(
            f"embedding_width={config.embedding_width} tied to the output without head_transform: expected "
            "head_transform=True, which projects back to that width"
        )
