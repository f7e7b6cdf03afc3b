"""Rotary positions in HF's `config.json`: base, rotated part of a head, and scaling; read and written.

Files of HF version 5 have one table `rope_parameters`. Older files have `rope_theta`, `partial_rotary_factor` and a
table `rope_scaling`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.checkpoint.hf.values import (
    UnsupportedModelError,
    read_float,
    read_int,
    read_value,
    shown,
)
from glassformer.models import ModelConfig

KINDS = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}
"""HF's names of rotary scaling -> ours. `su` is an old name of longrope."""
LONGEST = 1 << 16
"""The most divisors of frequencies that are read. No real head has as many features."""


def read_rotary(
    values: Mapping[str, Any],
    head_dim: int,
    *,
    theta: float = 10000.0,
    part: float | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the fields of `ModelConfig` about rotary positions, `max_len` included.

    Args:
        values: The values of `config.json`.
        head_dim: Size of a head.
        theta: HF's default of the base.
        part: HF's default of the rotated part of a head, `partial_rotary_factor`. None is for families whose heads are
            always rotated as a whole; for them a part is refused.
        parameters: The table of rotary parameters, instead of those in `values`.
    """
    table = rotary_table(values) if parameters is None else {**parameters}
    kind = table.get("rope_type", table.get("type", "default"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedModelError(
            f"config.json has rotary positions of type {shown(kind)}, not supported: expected one of {', '.join(KINDS)}"
        )
    whole = {**values, **table}
    share = read_float(whole, "partial_rotary_factor", default=1.0 if part is None else part)
    if part is None and share != 1.0:
        raise UnsupportedModelError(
            f"config.json has partial_rotary_factor={share:g}, not supported for this family: expected 1.0"
        )
    width = int(head_dim * share)
    length = read_int(values, "max_position_embeddings", default=2048)
    scaling = KINDS[kind]
    found: dict[str, Any] = {
        "rope_theta": read_float(whole, "rope_theta", default=theta),
        "rope_width": None if width == head_dim else width,
        "rope_scaling": scaling,
        "max_len": length,
    }
    if scaling == "none":
        return found
    found["rope_factor"] = read_float(table, "factor", default=1.0)
    if scaling in ("linear", "dynamic"):
        return found
    original = read_int(
        values, "original_max_position_embeddings", default=table.get("original_max_position_embeddings") or length
    )
    found["rope_original_len"] = original
    if scaling == "llama3":
        found["rope_low_rotations"] = read_float(table, "low_freq_factor", default=1.0)
        found["rope_high_rotations"] = read_float(table, "high_freq_factor", default=4.0)
        return found
    if read_value(table, "factor", default=None) is None and type(original) is int and original > 0:
        found["rope_factor"] = length / original
    attention = read_value(table, "attention_factor", default=None)
    found["rope_attention_factor"] = None if attention is None else read_float(table, "attention_factor", default=1.0)
    if scaling == "yarn":
        _add_yarn(found, table)
    else:
        found["rope_short_divisors"] = _divisors(table, "short_factor")
        found["rope_long_divisors"] = _divisors(table, "long_factor")
        # HF changes to the long divisors when a text grows beyond the original length, which changes all positions
        # before, too. Here a model has one set of divisors; a longer `max_len` chooses the other.
        found["max_len"] = min(length, original)
    return found


def rotary_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of rotary positions in `rope_parameters` and `rope_scaling`, which takes precedence."""
    table: dict[str, Any] = {}
    for name in ("rope_parameters", "rope_scaling"):
        found = read_value(values, name, default={})
        if not isinstance(found, Mapping):
            raise ValueError(f"config.json has {name}={shown(found)}: expected a table")
        if any(isinstance(item, Mapping) for item in found.values()):
            raise UnsupportedModelError(f"config.json has {name} per layer type, not supported: expected one")
        table |= found
    return table


def write_rotary(config: ModelConfig, *, has_part: bool = False) -> dict[str, Any]:
    """Return HF's values for the rotary positions of a config, `max_position_embeddings` included.

    `has_part` is for families that rotate a part of each head by default: the part is then written if it is 1, too.
    """
    table: dict[str, Any] = {
        "rope_type": {ours: theirs for theirs, ours in KINDS.items() if theirs != "su"}[config.rope_scaling],
        "rope_theta": config.rope_theta,
    }
    length = config.max_len
    has_part = has_part or config.rope_width is not None
    if has_part:
        # HF computes int(head size * factor), which may round down.
        share = config.rope_size / config.head_size
        exact = next(x for x in (share, share + 1e-9) if int(config.head_size * x) == config.rope_size)
        table["partial_rotary_factor"] = exact
    if config.rope_scaling != "none":
        table["factor"] = config.rope_factor
    if config.rope_scaling in ("llama3", "yarn", "longrope"):
        table["original_max_position_embeddings"] = config.rope_original_len
    if config.rope_scaling == "llama3":
        table |= {"low_freq_factor": config.rope_low_rotations, "high_freq_factor": config.rope_high_rotations}
    if config.rope_scaling == "yarn":
        table |= {"beta_slow": config.rope_low_rotations, "beta_fast": config.rope_high_rotations}
    if config.rope_scaling in ("yarn", "longrope") and config.rope_attention_factor is not None:
        table["attention_factor"] = config.rope_attention_factor
    if config.rope_scaling == "longrope" and config.rope_original_len is not None:
        table["short_factor"] = [*(config.rope_short_divisors or ())]
        table["long_factor"] = [*(config.rope_long_divisors or ())]
        if length == config.rope_original_len:  # the length that HF reaches with the long divisors
            length = max(length, round(config.rope_factor * config.rope_original_len))
    values = {"rope_theta": config.rope_theta, "rope_parameters": table, "max_position_embeddings": length}
    if has_part:
        values["partial_rotary_factor"] = table["partial_rotary_factor"]
    if config.rope_scaling != "none":  # for HF before version 5
        values["rope_scaling"] = {key: value for key, value in table.items() if key != "rope_theta"}
    return values


def _add_yarn(found: dict[str, Any], table: Mapping[str, Any]) -> None:
    if read_value(table, "truncate", default=True) is not True:
        raise UnsupportedModelError(
            f"config.json has yarn with truncate={shown(table['truncate'])}, not supported: expected true"
        )
    found["rope_low_rotations"] = read_float(table, "beta_slow", default=1.0) or 1.0
    found["rope_high_rotations"] = read_float(table, "beta_fast", default=32.0) or 32.0
    one, two = (read_float(table, key, default=0.0) for key in ("mscale", "mscale_all_dim"))
    if found["rope_attention_factor"] is None and one and two:
        growth = 0.1 * math.log(max(found["rope_factor"], 1.0))
        found["rope_attention_factor"] = (one * growth + 1.0) / (two * growth + 1.0)


def _divisors(table: Mapping[str, Any], key: str) -> tuple[float, ...]:
    found = read_value(table, key)
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) > LONGEST:
        raise ValueError(f"config.json has {key}={shown(found)}: expected a list of numbers")
    return tuple(read_float({key: value}, key, default=1.0) for value in found)
