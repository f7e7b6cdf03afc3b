"""FormatLimits of the formats we write: each field of a config is stored, has no effect, or must have one value."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.models import ModelConfig


class UnsupportedModelError(ValueError):
    """A model that this library, or the format it is to be written in, cannot express."""


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
"""Fields that change no answer of a trained model."""
POSITION_FIELDS = {
    "rotary": ("rope_theta",),
    "relative": ("relative_buckets", "relative_max_distance"),
    "sinusoidal": ("sinusoid_halves",),
}
"""Fields that count with one kind of positions alone."""


@dataclass(frozen=True, kw_only=True)
class FormatLimits:
    """The fields of a config as one format sees them.

    Each field must be in one of the two, unless it counts in training alone or with positions that are not allowed.
    """

    format: str
    written: frozenset[str]
    """Fields whose value the file holds, in its header or in its tensors."""
    required: Mapping[str, tuple[Any, ...]]
    """Fields that the format has no place for, with the values that it can compute."""

    def blocking(self, config: ModelConfig) -> list[str]:
        """The settings whose values the format cannot compute, each with the values that it can."""
        return [
            blocking_setting(name, value, self.required[name])
            for name, value in effective_settings(config).items()
            if name in self.required and value not in self.required[name]
        ]


def blocking_setting(name: str, value: object, expected: Collection[object]) -> str:
    """One setting that blocks an export, as errors show it: `qk_norm=True (expected False)`."""
    allowed = "a whole number" if name == "max_len" and value is None else " or ".join(map(repr, expected))
    return f"{name}={value!r} (expected {allowed})"


def refuse(format: str, blocking: Sequence[str]) -> None:
    """Raise if there are settings that block an export to this format; the error names all of them."""
    if blocking:
        raise UnsupportedModelError(f"{format} cannot express {', '.join(blocking)}")


def effective_settings(config: ModelConfig) -> dict[str, Any]:
    """The fields that decide a model's answers, each usual value in one spelling; those without effect are left out."""
    idle = {
        *TRAINING_FIELDS,
        *(key for kind, keys in POSITION_FIELDS.items() if kind != config.positions for key in keys),
    }
    idle |= set() if config.head == "language_model" else {"output_bias", "scale_output"}
    values = {key: value for key, value in config.to_dict().items() if key not in idle}
    values |= {"n_kv_heads": config.kv_heads, "head_dim": config.head_size, "final_norm": config.has_final_norm}
    values["attention_scale"] = None if config.scale == config.head_size**-0.5 else config.scale
    values["source_vocab_size"] = None if config.source_vocab == config.vocab_size else config.source_vocab
    pools = config.head in ("sequence_class", "embedding")
    return values | {"pooling": config.pool_by if pools else None}
