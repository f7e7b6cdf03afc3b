"""Layers of one model that differ in attention, in HF's `config.json`: `layer_types`, windows and rotary positions.

Files of HF before version 4.53 have no `layer_types` but a pattern, which each family knows its default of.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from glassformer.checkpoint.hf.rotary_values import read_rotary, write_rotary
from glassformer.checkpoint.hf.values import (
    UnsupportedModelError,
    read_bool,
    read_float,
    read_int,
    read_value,
    shown,
)
from glassformer.models import ModelConfig

FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULT_WINDOW = 4096
"""HF's default of `sliding_window`."""
MOST_LAYERS = 1 << 16
"""The most layers of a model with a list of layer kinds. No real model has as many."""


class Windows(NamedTuple):
    """The length of the sliding window, if any layer has one, and the layers without it."""

    window: int | None
    global_layers: tuple[int, ...]

    def fields(self) -> dict[str, Any]:
        """Return the fields of `ModelConfig` about windows."""
        return {"sliding_window": self.window, "global_layers": self.global_layers}


def read_windows(values: Mapping[str, Any], *, is_sliding: Callable[[int], bool], window: int | None) -> Windows:
    """Return the windows of a model's layers.

    Args:
        values: The values of `config.json`.
        is_sliding: HF's default for a layer, by its number, if there are no `layer_types`.
        window: The length of the window; None if the model has none.
    """
    n_layers = count_layers(values)
    kinds = read_value(values, "layer_types", default=None)
    if kinds is None:
        kinds = [SLIDING if is_sliding(index) else FULL for index in range(n_layers)]
    if not isinstance(kinds, list) or len(kinds) < n_layers or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise UnsupportedModelError(
            f"config.json has layer_types={shown(kinds)}: expected a list of {FULL!r} and {SLIDING!r} for each of the "
            f"{n_layers} layers"
        )
    global_layers = tuple(index for index in range(n_layers) if kinds[index] == FULL)
    if len(global_layers) == n_layers:
        return Windows(None, ())
    if window is None:
        raise UnsupportedModelError(
            f"config.json has {SLIDING!r} in layer_types without a sliding window: expected sliding_window"
        )
    return Windows(window, global_layers)


def count_layers(values: Mapping[str, Any]) -> int:
    """Return `num_hidden_layers`. Raises ValueError if it is more than a list of layers may have."""
    found: int = read_int(values, "num_hidden_layers")
    if not 0 < found <= MOST_LAYERS:
        raise ValueError(f"config.json has num_hidden_layers={found}: expected from 1 to {MOST_LAYERS}")
    return found


def write_windows(config: ModelConfig) -> dict[str, Any]:
    """Return HF's values for the windows of a config."""
    kinds = [
        FULL if config.sliding_window is None or index in config.global_layers else SLIDING
        for index in range(config.n_decoder_layers)
    ]
    # HF wants the length of a window even if no layer has one.
    return {"sliding_window": config.sliding_window or DEFAULT_WINDOW, "layer_types": kinds}


def qwen_windows(values: Mapping[str, Any]) -> Windows:
    """Return the windows of Qwen's layers: by default, those from `max_window_layers` on have one."""
    # HF's default if the key is absent; null means no window.
    window = read_int(values, "sliding_window", default=None if "sliding_window" in values else DEFAULT_WINDOW)
    if not read_bool(values, "use_sliding_window", default=False):
        window = None
    if window is None and read_value(values, "layer_types", default=None) is None:
        return Windows(None, ())
    first = read_int(values, "max_window_layers", default=28)
    return read_windows(values, is_sliding=lambda index: window is not None and index >= first, window=window)


def pattern_windows(values: Mapping[str, Any], every: int, *, key: str | None = None) -> Windows:
    """Return the windows of layers. By default every n-th layer is global; a key of older files may name n."""
    n = every if key is None else read_int(values, key, default=every)
    if n < 1:
        raise ValueError(f"config.json has {key}={n}: expected at least 1")
    window = read_int(values, "sliding_window", default=None if "sliding_window" in values else DEFAULT_WINDOW)
    return read_windows(values, is_sliding=lambda index: bool((index + 1) % n), window=window)


def unrotated_layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers of SmolLM3 without rotary positions; `no_rope_layers` has 0 for them and 1 for others."""
    n_layers, interval = count_layers(values), read_int(values, "no_rope_layer_interval", default=4)
    flags = read_value(values, "no_rope_layers", default=None)
    if flags is None:
        if interval < 1:
            raise ValueError(f"config.json has no_rope_layer_interval={interval}: expected at least 1")
        return tuple(range(interval - 1, n_layers, interval))
    if not isinstance(flags, list) or len(flags) < n_layers or any(flag not in (0, 1) for flag in flags):
        raise ValueError(f"config.json has no_rope_layers={shown(flags)}: expected 0 or 1 for each of the layers")
    return tuple(index for index in range(n_layers) if not flags[index])


def read_two_rotaries(
    values: Mapping[str, Any], head_dim: int, windows: Windows, *, theta: float, local_theta: float
) -> dict[str, Any]:
    """Return the fields about rotary positions of a model whose layers with a window have their own positions.

    `theta` and `local_theta` are HF's defaults of the two bases.
    """
    tables = read_value(values, "rope_parameters", default={})
    scaling = read_value(values, "rope_scaling", default={})
    if not isinstance(tables, Mapping) or not {*tables} <= {FULL, SLIDING} or not isinstance(scaling, Mapping):
        raise UnsupportedModelError(
            f"config.json has rope_parameters={shown(tables)}: expected a table each for {FULL!r} and {SLIDING!r}"
        )
    whole, local = ({**(tables.get(name) or {})} for name in (FULL, SLIDING))
    whole |= scaling
    whole.setdefault("rope_theta", read_float(values, "rope_theta", default=theta))
    local.setdefault("rope_theta", read_float(values, "rope_local_base_freq", default=local_theta))
    fields = read_rotary(values, head_dim, parameters=whole)
    if windows.window is None:
        return fields
    own = read_rotary(values, head_dim, parameters=local)
    if own == fields:
        return fields
    if not windows.global_layers:
        return own
    if own["rope_scaling"] != "none":
        raise UnsupportedModelError(
            f"config.json has rope_parameters={shown(local)} for {SLIDING!r}: expected the type 'default'"
        )
    return fields | {"local_rope_theta": own["rope_theta"]}


def write_two_rotaries(config: ModelConfig) -> dict[str, Any]:
    """Return HF's values for the rotary positions of a model with two kinds of layers."""
    values = write_rotary(config)
    whole = values["rope_parameters"]
    local = {"rope_type": "default", "rope_theta": config.local_rope_theta}
    values["rope_parameters"] = {FULL: whole, SLIDING: whole if config.local_rope_theta is None else local}
    return {**values, "rope_local_base_freq": config.local_rope_theta or config.rope_theta}
