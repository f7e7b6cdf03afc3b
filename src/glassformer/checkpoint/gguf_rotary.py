"""Scaled rotary positions in GGUF files: metadata under `rope.scaling`, and the tensor `rope_freqs.weight`.

llama.cpp divides each rotary frequency by its number in `rope_freqs.weight`. Llama 3.1 and later are stored so. The
reader returns HF's `rope_scaling` values; HF's longrope with equal short and long factors is the same division.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glassformer.models import ModelConfig
from glassformer.nn.rotary_scaling import rotary_frequencies

if TYPE_CHECKING:
    from glassformer.checkpoint.gguf_header import GgufHeader

DIVISORS = "rope_freqs.weight"
YARN_DEFAULTS = {
    "attn_factor": 1.0,
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_log_multiplier": 0.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
}
"""Keys of `rope.scaling` whose effect is read only with these values."""


def read_rope_scaling(header: GgufHeader, kind: str, head_dim: int, length: int) -> dict[str, Any]:
    """Return HF's `rope_scaling` values, an empty table if rotary positions are not scaled.

    `kind` is the architecture; `length` is the context length. Raises ValueError for a scaling that is not supported.
    """
    values = header.metadata
    factor = _factor(values, kind)
    # llama.cpp's default is linear scaling, with a factor of 1.
    scaling = values.get(f"{kind}.rope.scaling.type", "none" if factor == 1 else "linear")
    has_divisors = DIVISORS in header.tensors
    if scaling not in ("none", "linear", "yarn") or (scaling == "none" and factor != 1):
        raise ValueError(
            f"{kind}.rope.scaling.type={str(scaling)[:80]!r} with a factor of {factor:g}: expected 'none' without a "
            "factor, 'linear' or 'yarn'"
        )
    if scaling == "linear" and factor == 1:
        scaling = "none"
    if has_divisors and scaling != "none":
        raise ValueError(f"{kind}.rope.scaling.type={scaling!r} and {DIVISORS}: expected one of the two")
    if has_divisors:
        divisors = _read_divisors(header, head_dim)
        lists = {"short_factor": divisors, "long_factor": divisors}
        fixed = {"factor": 1.0, "attention_factor": 1.0, "original_max_position_embeddings": length}
        return {"rope_type": "longrope", **fixed, **lists}
    if scaling == "none":
        return {}
    found: dict[str, Any] = {"rope_type": scaling, "factor": factor}
    if scaling == "yarn":
        for key, usual in YARN_DEFAULTS.items():
            value = values.get(f"{kind}.rope.scaling.{key}", usual)
            if value != usual:
                raise ValueError(f"{kind}.rope.scaling.{key}={str(value)[:80]}: expected {usual:g}")
        original = values.get(f"{kind}.rope.scaling.original_context_length", length)
        if type(original) is not int or not 2 <= original <= length:
            raise ValueError(
                f"{kind}.rope.scaling.original_context_length={str(original)[:80]}: expected a whole number from 2 to "
                f"{length}, the context length"
            )
        found["original_max_position_embeddings"] = original
    return found


def write_rope_scaling(writer: Any, gguf: Any, config: ModelConfig) -> NDArray[np.float32] | None:
    """Write the metadata of scaled rotary positions, and return the values of `rope_freqs.weight` if there are any."""
    if config.rope_scaling in ("linear", "yarn"):
        writer.add_rope_scaling_type(getattr(gguf.RopeScalingType, config.rope_scaling.upper()))
        writer.add_rope_scaling_factor(config.rope_factor)
    if config.rope_scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(config.rope_original_len)
    if config.rope_scaling not in ("llama3", "longrope") or config.rotary_scaling is None:
        return None
    plain = rotary_frequencies(config.rope_size, config.rope_theta)
    scaled = config.rotary_scaling.scale(plain, config.rope_theta)
    return np.array([one / two for one, two in zip(plain, scaled, strict=True)], np.float32)


def blocking_rope_scaling(config: ModelConfig) -> list[str]:
    """Return the settings of scaled rotary positions that llama.cpp's metadata cannot express, with their values."""
    expected: dict[str, object] = {}
    if config.rope_scaling == "yarn":
        expected = {"rope_low_rotations": 1.0, "rope_high_rotations": 32.0, "rope_attention_factor": None}
    found = [
        f"{name}={getattr(config, name)!r} (expected {value!r})"
        for name, value in expected.items()
        if getattr(config, name) != value
    ]
    if config.rope_scaling == "longrope":
        if config.rope_short_divisors != config.rope_long_divisors:
            found.append("rope_long_divisors (expected those in rope_short_divisors)")
        if config.rotary_scaling is not None and config.rotary_scaling.amplitude != 1.0:
            found.append(f"rope_attention_factor={config.rotary_scaling.amplitude:g} (expected 1)")
    return found


def _factor(values: Mapping[str, Any], kind: str) -> float:
    """Return the factor of linear or yarn scaling, 1 if there is none."""
    for key in ("scaling.factor", "scale_linear"):
        value = values.get(f"{kind}.rope.{key}", 0.0)
        if type(value) is not float or not 0 <= value < math.inf:
            raise ValueError(f"{kind}.rope.{key}={str(value)[:80]}: expected a positive number")
        if value not in (0.0, 1.0):
            return float(str(np.float32(value)))  # the shortest decimal that rounds to it
    return 1.0


def _read_divisors(header: GgufHeader, head_dim: int) -> list[float]:
    stored = header.tensors[DIVISORS]
    if stored.shape != (head_dim // 2,) or stored.kind.name != "F32":
        raise ValueError(
            f"{DIVISORS} has the shape {stored.shape} in {stored.kind.name}: expected ({head_dim // 2},) in F32"
        )
    values = np.fromfile(header.path, np.float32, head_dim // 2, offset=stored.start)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{DIVISORS} holds {values.min():g} to {values.max():g}: expected finite numbers above 0")
    return [float(value) for value in values]
