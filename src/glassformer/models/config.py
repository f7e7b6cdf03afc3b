"""The config of a model: one frozen, validated dataclass for all families.

BERT, GPT-2, Llama, T5 and all other families differ only in the values of these fields; see `presets.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from glassformer.base.checks import shown
from glassformer.base.fields import Checked, Count, NotNegative, Positive, Probability, Whole
from glassformer.base.names import suggestion
from glassformer.models.config_checks import check_config
from glassformer.models.config_names import HEAD_FIELDS, OTHER_NAMES
from glassformer.nn.activations import ActivationName, HeadActivationName
from glassformer.nn.rotary_scaling import RotaryScaling, ScalingKind

Kind = Literal["encoder", "decoder", "encoder_decoder"]
PoolingName = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted_mean"]
"""Ways to pool the vectors of a sequence into one. "mean_sqrt" is their sum divided by the root of their number;
"weighted_mean" weights the n-th token by n."""


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
    """Factor on attention scores; None is 1/√head_dim (1/√(3 head_dim) if disentangled), T5 uses 1."""
    scale_by_depth: bool = False
    """Divide the attention scores of the n-th layer by n, as some GPT-2 models do."""
    qkv_bias: bool = True
    """Add a bias to the query, key and value projections."""
    key_bias: bool = True
    """Add a bias to the key projection, if qkv_bias is set; DeBERTa v1 has none."""
    out_bias: bool = True
    """Add a bias to the output projection of attention."""
    qk_norm: bool = False
    """Normalize queries and keys, before rotary positions are applied."""
    qk_norm_over: Literal["head", "all_heads"] = "head"
    """Normalize queries and keys over each head, or over all heads at once, as in OLMo 2."""
    clip_qkv: Positive | None = None
    """Bound of the absolute values of queries, keys and values, as in OLMo; None sets no bound."""
    attention_softcap: Positive | None = None
    """Soft bound c of attention scores, c · tanh(score / c), as in Gemma 2; None sets no bound."""
    sliding_window: Count | None = None
    """Self-attention reaches tokens fewer than this many positions away; None reaches all."""
    global_layers: tuple[Whole, ...] = ()
    """Layers, by their numbers from 0, whose self-attention reaches all tokens despite sliding_window."""

    # Feed-forward
    activation: ActivationName = "relu"
    """Activation function of the feed-forward layers."""
    gated: bool = False
    """Multiply the activation by a second projection, as SwiGLU does."""
    ffn_bias: bool = True
    """Add biases in the feed-forward layers."""

    # Experts
    n_experts: Whole = 0
    """Feed-forward networks of a decoder layer, of which a router chooses a few for each token; 0 has no router."""
    experts_per_token: Count = 2
    """Number of experts that the router chooses for each token."""
    expert_d_ff: Count | None = None
    """Inner width of each expert; None is d_ff."""
    shared_expert_d_ff: Count | None = None
    """Inner width of one more expert for all tokens, with a gate, as in Qwen2-MoE; None has none."""
    normalize_expert_weights: bool = True
    """Divide the weights of a token's experts by their sum."""
    dense_layers: tuple[Whole, ...] = ()
    """Layers, by their numbers from 0, with one feed-forward network of width d_ff instead of experts."""
    expert_balance: NotNegative = 0.01
    """Weight of the loss that lets all experts get equally many tokens, in the training of language models."""

    # Norms
    norm: Literal["layer", "rms", "offset_rms", "mean_std"] = "layer"
    """Kind of normalization; offset_rms stores an RMS norm's weight as its difference from 1, as Gemma does."""
    norm_placement: Literal["pre", "post", "sandwich", "output"] = "post"
    """Normalize each sublayer's input (pre), output, both (sandwich, as in Gemma 2), or the residual sum (post)."""
    norm_eps: Positive = 1e-5
    """Small number that keeps a norm from dividing by zero."""
    norm_bias: bool = True
    """Add a bias in layer norms; RMS norms have none."""
    norm_weight: bool = True
    """Multiply by a learned weight in norms; without it, as in OLMo, norms have no parameters."""
    first_norm: bool = True
    """Normalize the input of the first layer's attention; ModernBERT does not, as its embeddings are normalized."""
    final_norm: bool | None = None
    """Normalize after the last layer; None does so unless norm_placement is post."""

    # Positions
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "disentangled", "none"] = "sinusoidal"
    """How the model knows the order of tokens."""
    position_offset: Whole = 0
    """Row of the learned or sinusoidal positions that the first token reads (2 in RoBERTa, BART and M2M100)."""
    sinusoid_halves: bool = False
    """Put all sines before all cosines, as Marian does, instead of alternating them."""
    sinusoid_full_range: bool = False
    """Let the lowest frequency of sinusoidal positions be 1/10000 exactly, as M2M100 and NLLB do."""
    rope_theta: Positive = 10000.0
    """Base of the rotary frequencies."""
    local_rope_theta: Positive | None = None
    """Base of rotary frequencies, not scaled, in layers with a sliding window, as in Gemma 3; None is rope_theta."""
    unrotated_layers: tuple[Whole, ...] = ()
    """Layers, by their numbers from 0, without rotary positions, as in SmolLM3."""
    rope_width: Count | None = None
    """Features of each head that rotary positions rotate, the first ones; None rotates the whole head."""
    rope_scaling: ScalingKind = "none"
    """How rotary frequencies are lowered for texts longer than those of the first training."""
    rope_factor: Positive = 1.0
    """Factor that scaled rotary frequencies are divided by; its effect depends on rope_scaling."""
    rope_original_len: Count | None = None
    """Length of the texts of the first training, for llama3, yarn and longrope."""
    rope_low_rotations: Positive = 1.0
    """Frequencies that turn less often over rope_original_len are divided by the whole factor (llama3, yarn)."""
    rope_high_rotations: Positive = 4.0
    """Frequencies that turn more often over rope_original_len are kept (4 in Llama 3, 32 in YaRN)."""
    rope_attention_factor: Positive | None = None
    """Factor on rotated queries and keys, for yarn and longrope; None is the default of the method."""
    rope_short_divisors: tuple[float, ...] | None = None
    """Divisor of each rotary frequency with longrope, if max_len is at most rope_original_len."""
    rope_long_divisors: tuple[float, ...] | None = None
    """Divisor of each rotary frequency with longrope, if max_len is above rope_original_len."""
    relative_buckets: Count = 32
    """Number of buckets for relative positions."""
    relative_max_distance: Count = 128
    """Distance from which all relative positions share one bucket."""
    relative_log: bool = True
    """Let buckets of large distances widen, with disentangled positions; otherwise each distance has its own."""
    relative_norm: bool = True
    """Normalize the vectors of relative positions, with disentangled positions; DeBERTa v1 does not."""
    share_relative_proj: bool = True
    """Project vectors of relative positions like queries and keys; otherwise separately, as in DeBERTa v1."""
    relative_bias: bool = False
    """Add T5's relative biases to the attention scores beside other positions, as MPNet does."""
    share_relative_bias: bool = True
    """Use one table of relative biases for all layers of a stack, as T5 does; UMT5 has one for each layer."""

    # Embeddings
    scale_embeddings: bool = False
    """Multiply token vectors by √width."""
    embedding_multiplier: Positive | None = None
    """Factor on token vectors; None is √width with scale_embeddings and 1 without."""
    token_types: Whole = 0
    """Number of token types, such as 2 in BERT for sentences A and B."""
    embedding_norm: bool = False
    """Normalize the embeddings before the first layer."""
    embedding_width: Count | None = None
    """Width of the embedding tables, which a linear layer projects to d_model (ALBERT); None is d_model."""
    tie: Literal["none", "output", "embeddings", "all"] = "none"
    """Matrices that share weights: the (target) embedding and the output, the two embeddings, or all three."""

    # Depth
    residual_multiplier: Positive = 1.0
    """Factor on each sublayer's output, before the residual sum, as in Granite."""
    parallel_ffn: Literal["none", "two_norms", "one_norm"] = "none"
    """Feed the feed-forward layer with the input of attention, not its output, after its own norm or the same one."""
    share_layers: bool = False
    """Use one layer's weights for all layers."""

    conv_kernel: Count | None = None
    """Tokens that a convolution beside the first layer of an encoder reads, as in DeBERTa v2; None has none."""
    conv_activation: HeadActivationName = "tanh"
    """Activation of that convolution."""

    # Head
    head: Literal["none", "language_model", "sequence_class", "token_class", "span", "embedding"] = "none"
    """Head that computes the model's output from the last layer."""
    n_labels: Count | None = None
    """Number of classes, for the heads sequence_class and token_class."""
    head_transform: bool = False
    """Add a dense layer to the head, with activation and norm for a language model or tanh otherwise, as in BERT."""
    head_activation: HeadActivationName | None = None
    """Activation of the dense layer in a head; None is the layers' in a language-model head, and tanh otherwise."""
    head_norm: bool | None = None
    """Normalize after the dense layer of a head; None does so in a language-model head only."""
    head_bias: bool = True
    """Add a bias in the dense layer of a head."""
    head_width: Count | None = None
    """Width of the vectors of an embedding head with a dense layer; None is d_model."""
    unit_length: bool = True
    """Divide the vectors of an embedding head by their length."""
    pooling: PoolingName | None = None
    """How a head pools a sequence into one vector; None is the first token of an encoder, the last of a decoder."""
    output_bias: bool = True
    """Add a learned bias to each token's logit in the language-model head."""
    scale_output: bool = False
    """Divide the hidden states by √d_model before the vocabulary projection, as T5 1.0 does."""
    output_multiplier: Positive = 1.0
    """Factor on the hidden states before the vocabulary projection, as in Granite and Cohere."""
    output_softcap: Positive | None = None
    """Soft bound c of logits, c · tanh(logit / c), as in Gemma 2; None sets no bound."""

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
        check_config(self)

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
    def rope_size(self) -> int:
        """Number of features of a head that are rotated: `rope_width`, or the size of the head if it is None."""
        return self.head_size if self.rope_width is None else self.rope_width

    @property
    def expert_width(self) -> int:
        """Inner width of each expert: `expert_d_ff`, or `d_ff` if it is None."""
        return self.d_ff if self.expert_d_ff is None else self.expert_d_ff

    @property
    def has_relative_bias(self) -> bool:
        """Whether T5's relative biases are added to the attention scores."""
        return self.relative_bias or self.positions == "relative"

    @property
    def rotary_scaling(self) -> RotaryScaling | None:
        """The scaling of rotary frequencies, or None if they are not scaled."""
        if self.rope_scaling == "none":
            return None
        is_long = self.max_len is None or self.max_len > (self.rope_original_len or 1)
        return RotaryScaling(
            kind=self.rope_scaling,
            factor=self.rope_factor,
            original_len=self.rope_original_len or 1,
            low_rotations=self.rope_low_rotations,
            high_rotations=self.rope_high_rotations,
            attention_factor=self.rope_attention_factor,
            divisors=(self.rope_long_divisors if is_long else self.rope_short_divisors) or (),
        )

    @property
    def scale(self) -> float:
        """Factor on attention scores: `attention_scale`, or if it is None, 1/√head_size.

        Disentangled scores are the sum of three products, so the default for them is 1/√(3 head_size).
        """
        if self.attention_scale is not None:
            return self.attention_scale
        return (self.head_size * (3 if self.positions == "disentangled" else 1)) ** -0.5

    @property
    def source_vocab(self) -> int:
        """Vocabulary size of an encoder-decoder's encoder: `source_vocab_size`, or `vocab_size` if it is None."""
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size

    @property
    def table_width(self) -> int:
        """Width of the embedding tables: `embedding_width`, or `d_model` if it is None."""
        return self.d_model if self.embedding_width is None else self.embedding_width

    @property
    def embedding_factor(self) -> float:
        """Factor on token vectors: `embedding_multiplier`, or if it is None, √table_width with `scale_embeddings`."""
        if self.embedding_multiplier is not None:
            return self.embedding_multiplier
        return math.sqrt(self.table_width) if self.scale_embeddings else 1.0

    @property
    def output_factor(self) -> float:
        """Factor on the hidden states before the vocabulary projection."""
        return self.output_multiplier * (self.d_model**-0.5 if self.scale_output else 1.0)

    @property
    def pool_by(self) -> PoolingName:
        """How a head pools a sequence: `pooling`, or if it is None, "last" for models with a decoder, else "first"."""
        return self.pooling or ("last" if self.n_decoder_layers else "first")

    @property
    def has_head_norm(self) -> bool:
        """Whether a norm follows the head's dense layer: `head_norm`, or if it is None, only for language models."""
        is_default = self.head == "language_model"
        return self.head_transform and (is_default if self.head_norm is None else self.head_norm)

    @property
    def embedding_size(self) -> int:
        """Width of the vectors that an embedding head returns: `head_width`, or `d_model` if it is None."""
        return self.d_model if self.head_width is None else self.head_width

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
        """Whether a norm follows the last layer of a stack: `final_norm`, or if it is None, unless with post-norm."""
        return self.norm_placement != "post" if self.final_norm is None else self.final_norm

    def with_head(self, head: str, **changes: Any) -> "ModelConfig":
        """Return this config with another head: `preset("bert-base").with_head("sequence_class", n_labels=2)`.

        Fields that belong to the old head (`HEAD_FIELDS` and a tied output) are reset, unless `changes` sets them.
        """
        reset = {field.name: field.default for field in fields(self) if field.name in HEAD_FIELDS}
        values: dict[str, Any] = {**reset, "head": head}
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
