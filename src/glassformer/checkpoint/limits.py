"""What each export format can express: every config field is stored, ignored, or restricted to some values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.models import ModelConfig


class UnsupportedModelError(ValueError):
    """The model uses a setting that Glassformer or the export format does not support."""


TRAINING_FIELDS = frozenset(
    {
        "dropout",
        "attention_dropout",
        "activation_dropout",
        "embedding_dropout",
        "layer_drop",
        "init",
        "init_std",
    }
)
"""Fields that matter only during training."""
POSITION_FIELDS = {
    "rotary": ("rope_theta",),
    "relative": ("relative_buckets", "relative_max_distance"),
    "sinusoidal": ("sinusoid_halves",),
}
"""Fields that matter only for one kind of positions."""


@dataclass(frozen=True, kw_only=True)
class FormatLimits:
    """The config fields that a format stores and those it restricts.

    Every field is in `written` or `required`, except training fields and fields of position kinds that are not allowed.
    """

    format: str
    written: frozenset[str]
    """Fields whose value the file stores, in its header or as tensors."""
    required: Mapping[str, tuple[Any, ...]]
    """Fields that the file does not store, with the values that the format's runtime implements."""

    def blocking(self, config: ModelConfig) -> list[str]:
        """Return the settings with values that the format does not support, each with the supported values."""
        return [
            blocking_setting(name, value, self.required[name])
            for name, value in effective_settings(config).items()
            if name in self.required and value not in self.required[name]
        ]


def blocking_setting(name: str, value: object, expected: Collection[object]) -> str:
    """Format one unsupported setting for an error message: `qk_norm=True (expected False)`."""
    allowed = "a whole number" if name == "max_len" and value is None else " or ".join(map(repr, expected))
    return f"{name}={value!r} (expected {allowed})"


def refuse(format: str, blocking: Sequence[str]) -> None:
    """Raise UnsupportedModelError naming all `blocking` settings, if there are any."""
    if blocking:
        raise UnsupportedModelError(f"{format} cannot express {', '.join(blocking)}")


def effective_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the fields that affect the outputs of a trained model. Equivalent values get one spelling."""
    no_effect = {
        *TRAINING_FIELDS,
        *(key for kind, keys in POSITION_FIELDS.items() if kind != config.positions for key in keys),
    }
    no_effect |= set() if config.head == "language_model" else {"output_bias", "scale_output"}
    values = {key: value for key, value in config.to_dict().items() if key not in no_effect}
    values |= {"n_kv_heads": config.kv_heads, "head_dim": config.head_size, "final_norm": config.has_final_norm}
    values["attention_scale"] = None if config.scale == config.head_size**-0.5 else config.scale
    values["source_vocab_size"] = None if config.source_vocab == config.vocab_size else config.source_vocab
    pools = config.head in ("sequence_class", "embedding")
    return values | {"pooling": config.pool_by if pools else None}
