"""What each export format can express: every config field is stored, ignored, or restricted to some values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from glassformer.models import ModelConfig
from glassformer.models.config_names import EXPERT_FIELDS


class UnsupportedModelError(ValueError):
    """The model uses a setting that Glassformer or the export format does not support."""


TRAINING_FIELDS = frozenset(
    {
        "dropout",
        "attention_dropout",
        "activation_dropout",
        "embedding_dropout",
        "layer_drop",
        "expert_balance",
        "init",
        "init_std",
    }
)
"""Fields that matter only during training."""
ROTARY_SCALING = {
    "none": (),
    "linear": ("rope_factor",),
    "dynamic": ("rope_factor",),
    "llama3": ("rope_factor", "rope_original_len", "rope_low_rotations", "rope_high_rotations"),
    "yarn": (
        *("rope_factor", "rope_original_len", "rope_low_rotations", "rope_high_rotations", "rope_attention_factor"),
    ),
    "longrope": (
        *("rope_factor", "rope_original_len", "rope_attention_factor", "rope_short_divisors", "rope_long_divisors"),
    ),
}
"""By kind of rotary scaling: the fields that have an effect with it."""
ROTARY_SCALING_FIELDS = tuple(dict.fromkeys(name for names in ROTARY_SCALING.values() for name in names))
POSITION_FIELDS = {
    "rotary": (
        *("rope_theta", "rope_width", "rope_scaling", "local_rope_theta", "unrotated_layers"),
        *ROTARY_SCALING_FIELDS,
    ),
    "relative": ("relative_buckets", "relative_max_distance", "share_relative_bias"),
    "disentangled": (
        *("relative_buckets", "relative_max_distance", "relative_log", "relative_norm", "share_relative_proj"),
    ),
    "sinusoidal": ("sinusoid_halves", "sinusoid_full_range"),
}
"""By kind of position encoding: the fields that have an effect only with that kind."""


OUTPUT_FIELDS = {"output_bias", "scale_output", "output_multiplier", "output_softcap"}
"""Fields that have an effect only with a language-model head."""


@dataclass(frozen=True, kw_only=True)
class FormatLimits:
    """Which config fields an export format stores (`written`), and which must have certain values (`required`).

    Every field is in one of the two, except `TRAINING_FIELDS` and the fields that have an effect only with a position
    encoding that the format does not support.
    """

    format: str
    written: frozenset[str]
    """Fields whose value the file stores, in its header or as tensors."""
    required: Mapping[str, tuple[Any, ...]]
    """Fields that the file does not store, with the values that the format's runtime implements."""

    def blocking(self, config: ModelConfig) -> list[str]:
        """Return the settings of `config` that the format does not support, each as `name=value (expected ...)`."""
        return [
            blocking_setting(name, value, self.required[name])
            for name, value in effective_settings(config).items()
            if name in self.required and value not in self.required[name]
        ]


def unset(*names: str) -> dict[str, tuple[Any, ...]]:
    """Return the default of each of these config fields as its only allowed value, for `FormatLimits.required`."""
    return {field.name: (field.default,) for field in fields(ModelConfig) if field.name in names}


def blocking_setting(name: str, value: object, expected: Collection[object]) -> str:
    """Format one unsupported setting for an error message: `qk_norm=True (expected False)`."""
    allowed = "a whole number" if name == "max_len" and value is None else " or ".join(map(repr, expected))
    return f"{name}={value!r} (expected {allowed})"


def refuse(format: str, blocking: Sequence[str]) -> None:
    """Raise UnsupportedModelError if `blocking` is not empty. The message names the format and all these settings."""
    if blocking:
        raise UnsupportedModelError(f"{format} cannot express {', '.join(blocking)}")


def effective_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the config fields that affect the outputs of a trained model, by name.

    Values with the same meaning become equal: `n_kv_heads=None`, for example, becomes the number of heads.
    """
    no_effect = {
        *TRAINING_FIELDS,
        *({key for keys in POSITION_FIELDS.values() for key in keys} - {*POSITION_FIELDS.get(config.positions, ())}),
    }
    no_effect -= {*POSITION_FIELDS["relative"]} if config.relative_bias else set()
    no_effect |= {*ROTARY_SCALING_FIELDS} - {*ROTARY_SCALING[config.rope_scaling]}
    no_effect |= {"norm_bias"} if config.norm in ("rms", "offset_rms") else set()
    no_effect |= set() if config.qk_norm else {"qk_norm_over"}
    no_effect |= set() if config.head == "language_model" else OUTPUT_FIELDS
    no_effect |= set() if config.n_experts else {*EXPERT_FIELDS}
    no_effect |= {"d_ff"} if config.n_experts and not config.dense_layers else set()
    values = {key: value for key, value in config.to_dict().items() if key not in no_effect}
    values |= {"n_kv_heads": config.kv_heads, "head_dim": config.head_size, "final_norm": config.has_final_norm}
    values["attention_scale"] = None if config.scale == config.head_size**-0.5 else config.scale
    if config.n_experts:
        values["expert_d_ff"] = config.expert_width
    if config.conv_kernel is None:
        values.pop("conv_activation")
    if config.positions == "disentangled" and not config.relative_log:
        values.pop("relative_max_distance")
    values["source_vocab_size"] = None if config.source_vocab == config.vocab_size else config.source_vocab
    # A multiplier of 1 is none; one of √width is `scale_embeddings`.
    is_root = config.embedding_factor == config.table_width**0.5 and config.embedding_factor != 1.0
    values["scale_embeddings"] = is_root
    values["embedding_multiplier"] = None if is_root or config.embedding_factor == 1.0 else config.embedding_factor
    if "rope_width" in values:
        values["rope_width"] = None if config.rope_size == config.head_size else config.rope_size
    if config.head == "language_model" and config.head_activation == config.activation:
        values["head_activation"] = None
    depth = max(config.n_encoder_layers, config.n_decoder_layers)
    if len(config.global_layers) == depth:  # no layer has the window
        values |= {"sliding_window": None, "global_layers": ()}
    if config.local_rope_theta == config.rope_theta and config.rope_scaling == "none":
        values["local_rope_theta"] = None
    if config.head != "language_model" and config.head_activation == "tanh":
        values["head_activation"] = None
    values["head_norm"] = config.has_head_norm if config.head_transform else None
    values["head_width"] = config.embedding_size if config.head == "embedding" else None
    pools = config.head in ("sequence_class", "embedding")
    return values | {"pooling": config.pool_by if pools else None}
